"""What one source of configuration says, key by key, with the place where it says so."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

from app.config import document
from app.config.keys import Path, row, subsection, unknown_key
from app.config.schema import Config
from app.config.section import Section
from app.explain import show
from app.problems import Problem


@dataclass(frozen=True, slots=True)
class Setting:
    """The key at `path` is `value`, said at `where`. Policy parameters are keys of their own."""

    path: Path
    value: object
    where: str


@dataclass(slots=True)
class Layer:
    """The settings of a source in its order, a later one outdoing an earlier one."""

    settings: list[Setting] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)

    @classmethod
    def merge(cls, layers: Iterable[Layer]) -> Layer:
        """All of `layers` as one; the last has the last word."""
        return cls([setting for layer in layers for setting in layer.settings])

    def tree(self) -> dict[str, Any]:
        """The settings as nested mappings, for the schema to validate."""
        tree: dict[str, Any] = {}
        for setting in self.settings:
            parent = tree
            for name in setting.path[:-1]:
                parent = parent.setdefault(name, {})
            parent[setting.path[-1]] = {} if setting.value == {} else setting.value
        return tree

    def origin(self, *paths: Path) -> str:
        """Where a value at or above one of `paths` was said last; empty if nowhere."""
        for setting in reversed(self.settings):
            if any(setting.path == path[: len(setting.path)] for path in paths):
                return setting.where
        return ""

    def sources(self) -> dict[str, str]:
        """The origin of every dotted key that has a setting."""
        return {".".join(s.path): self.origin(s.path) for s in self.settings}

    def read(
        self, text: str, where: str, *, under: Sequence[str] = (), lines: bool = False
    ) -> None:
        """Add what the YAML `text` says, as the value of the key `under` (default: all keys).

        `where` names the source in messages; with `lines` the line is appended to it.
        """
        _Reader(self, where, lines).read(text, under)


class _Reader:
    """Walks one YAML document along the schema."""

    def __init__(self, layer: Layer, where: str, lines: bool) -> None:
        self._layer = layer
        self._where = where
        self._lines = lines

    def read(self, text: str, under: Sequence[str]) -> None:
        try:
            root = document.compose(text, under)
            self._duplicates(root)
            self._section(Config, (), root)
        except yaml.YAMLError as error:
            line, problem = document.explain(error)
            where = self._at(line) if line else self._where
            self._layer.problems.append(Problem(".".join(under), f"not YAML: {problem}", where))
        except RecursionError:
            problem = "an anchor that holds itself"
            self._layer.problems.append(Problem(".".join(under), problem, self._where))

    def _at(self, line: int) -> str:
        return f"{self._where}:{line}" if self._lines else self._where

    def _complain(self, path: Path, message: str, line: int) -> None:
        self._layer.problems.append(Problem(".".join(path), message, self._at(line)))

    def _duplicates(self, root: yaml.Node) -> None:
        for key, line, first in document.duplicates(root):
            earlier = f"; first on line {first}" if self._lines else ""
            self._complain((key,), f"given twice{earlier}", line)

    def _section(self, section: type[Section], path: Path, node: yaml.Node) -> None:
        for name, key_node, value_node in self._entries(path, node):
            here = (*path, name)
            knob = section.model_fields.get(name)
            if knob is None:
                self._complain(here, unknown_key(here), document.line_of(key_node))
            elif inner := subsection(knob):
                self._section(inner, here, value_node)
            elif inner := row(knob):
                self._table(inner, here, key_node, value_node)
            elif here == ("scheduler", "params"):
                self._params(here, key_node, value_node)
            else:
                self._set(here, document.plain(value_node), key_node)

    def _table(
        self, section: type[Section], path: Path, key_node: yaml.Node, node: yaml.Node
    ) -> None:
        """Entries join those of earlier sources, and so do their keys; nothing clears either."""
        if document.is_empty(node):
            self._set(path, {}, key_node)
        for name, entry_key, entry in self._entries(path, node):
            if document.is_empty(entry):
                self._set((*path, name), {}, entry_key)
            self._section(section, (*path, name), entry)

    def _params(self, path: Path, key_node: yaml.Node, node: yaml.Node) -> None:
        """Parameters join those of earlier sources; an empty mapping clears them."""
        if document.is_empty(node):
            self._set(path, {}, key_node)
        for name, param_key, param in self._entries(path, node):
            self._set((*path, name), document.plain(param), param_key)

    def _entries(self, path: Path, node: yaml.Node) -> list[tuple[str, yaml.Node, yaml.Node]]:
        """The entries of a mapping; none, and maybe a problem, if it is something else."""
        if isinstance(node, yaml.MappingNode):
            return [(document.key(k), k, v) for k, v in node.value]
        if not document.is_empty(node):
            got = show(document.plain(node))
            self._complain(path, f"expected a mapping, got {got}", document.line_of(node))
        return []

    def _set(self, path: Path, value: object, node: yaml.Node) -> None:
        self._layer.settings.append(Setting(path, value, self._at(document.line_of(node))))
