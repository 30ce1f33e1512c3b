"""What a request wants its answer to be held to."""

from __future__ import annotations

from collections.abc import Iterator

from app.errors import invalid
from app.schemas.sampling import Generate
from app.structured.source import ANY_OBJECT, Source, choice_source, json_source


def source_of(request: Generate) -> Source | None:
    """The grammar that a request asks for, if it asks for one.

    Raises ApiError (400) for two of them, and for controls that could leave no token to choose.
    """
    sources = [*_of_the_format(request), *_of_vllm(request)]
    if not sources:
        return None
    first, *others = sources
    for other in others:
        raise invalid(f"{other.param} cannot be combined with {first.param}.", other.param)
    check_controls(request, first.param)
    return first


def check_controls(request: Generate, param: str) -> None:
    """Raises ApiError (400) for fields that go with no grammar, which came in the field `param`."""
    for name, value in (
        ("use_beam_search", request.use_beam_search),
        ("allowed_token_ids", request.allowed_token_ids),
        ("bad_words", request.bad_words),
        ("min_tokens", request.min_tokens),
    ):
        if value:
            raise invalid(f"{name} cannot be combined with {param}.", name)


def others_than_format(request: Generate) -> str:
    """The field of another grammar than that of the answer's format; empty if there is none."""
    return next((source.param for source in _of_vllm(request)), "")


def _of_the_format(request: Generate) -> Iterator[Source]:
    """The grammar that is asked for where OpenAI has a field for it."""
    if request.answer_schema is not None:
        yield json_source(*request.answer_schema)


def _of_vllm(request: Generate) -> Iterator[Source]:
    """Grammars that are asked for where vLLM has fields for them."""
    for name, member in (request.structured_outputs or {}).items():
        yield _source(name, member, "structured_outputs")
    for name in ("json", "regex", "choice", "grammar"):
        param = f"guided_{name}"
        if (member := getattr(request, param)) is not None:
            yield _source(name, member, param)


def _source(name: str, member: object, param: str) -> Source:
    """A member of structured_outputs, or what would be one."""
    match name, member:
        case "json_object", _:
            return json_source(ANY_OBJECT, param)
        case "json", dict():
            return json_source(member, param)
        case "choice", list():
            return choice_source(member, param)
        case "regex", str():
            return Source("regex", member, param)
        case _:
            return Source("grammar", str(member), param)
