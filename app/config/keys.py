"""The dotted keys that the schema knows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import get_args, get_origin

from pydantic import SecretStr
from pydantic.fields import FieldInfo

from app.config.schema import Config
from app.config.section import Section
from app.problems import nearest

Path = tuple[str, ...]


def subsection(field: FieldInfo) -> type[Section] | None:
    """The section that a field holds; None if the field is a knob."""
    kind = field.annotation
    return kind if isinstance(kind, type) and issubclass(kind, Section) else None


def row(field: FieldInfo) -> type[Section] | None:
    """The section that each entry of a table such as `classes` holds; None for other fields."""
    kinds = get_args(field.annotation)
    kind = kinds[1] if get_origin(field.annotation) is dict else None
    return kind if isinstance(kind, type) and issubclass(kind, Section) else None


def is_secret(path: Path) -> bool:
    """Whether what stands at `path` is, or is part of, what nobody may print."""
    return any(
        len(known) <= len(path)
        and all(name in ("NAME", given) for name, given in zip(known, path, strict=False))
        and _holds_secret(field.annotation)
        for known, field in [*fields(), *_rows("NAME")]
    )


def _holds_secret(annotation: object) -> bool:
    return annotation is SecretStr or any(map(_holds_secret, get_args(annotation)))


def fields(section: type[Section] = Config, path: Path = ()) -> Iterator[tuple[Path, FieldInfo]]:
    """Every field, sections included, in the schema's order; of tables not what their rows hold."""
    for name, field in section.model_fields.items():
        yield (*path, name), field
        if inner := subsection(field):
            yield from fields(inner, (*path, name))


def _rows(entry: str) -> Iterator[tuple[Path, FieldInfo]]:
    """The fields of the tables' rows, as those of the entry of this name."""
    for path, field in fields():
        if inner := row(field):
            yield from fields(inner, (*path, entry))


def meant_by_option(name: str) -> list[str]:
    """The keys that somebody may mean with `--name`: a section's first, or knobs of this name."""
    known = [path for path, field in fields() if not subsection(field)]
    name = name.removeprefix("--").replace("-", "_")
    of_section = [path for path in known if path[:-1] == (name,)]
    return [".".join(path) for path in of_section[:1] or [p for p in known if p[-1] == name]]


def unknown_key(path: Path) -> str:
    """Say what an unknown key was probably meant to be."""
    tables = [table for table, field in fields() if row(field)]
    inside = [path[len(t)] for t in tables if path[: len(t)] == t and len(path) > len(t) + 1]
    entry = inside[0] if inside else "NAME"
    known = [candidate for candidate, _ in [*fields(), *_rows(entry)]]
    owners = [".".join(p[:-1]) or "the top level" for p in known if p[-1] == path[-1]]
    if owners:
        return f"unknown key; {path[-1]} belongs under {' or '.join(owners)}"
    siblings = {p[-1]: p for p in known if p[:-1] == path[:-1]}
    cousins = {p[-1]: p for p in known}
    for names, at_least in ((siblings, 0.5), (cousins, 0.7)):
        if match := nearest(path[-1], names, at_least):
            return f"unknown key; did you mean {'.'.join(names[match])}?"
    return f"unknown key; known here: {', '.join(siblings)}"
