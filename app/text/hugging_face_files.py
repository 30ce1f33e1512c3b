"""What a Hugging Face folder says about text, read from its JSON files and templates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import orjson

from engine.errors import ModelError

Json: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class TextFiles:
    """tokenizer: tokenizer.json. bos_token, eos_token: their texts; "" if there is none.

    add_bos: whether prompts start with BOS, None where that is left to tokenizer.json. eos_ids:
    with which the model ends a sequence. vocab: rows of its embedding.
    """

    path: Path
    tokenizer: Json
    bos_token: str
    eos_token: str
    add_bos: bool | None
    eos_ids: frozenset[int]
    vocab: int
    chat_template: str | None


def read_text_files(folder: Path) -> TextFiles:
    """Read the files of `folder`. Raises ModelError for those that are missing or damaged."""
    path = folder / "tokenizer.json"
    tokenizer = _read(path)
    model = _read(folder / "config.json")
    config = _read_if_there(folder / "tokenizer_config.json")
    generation = _read_if_there(folder / "generation_config.json")
    vocab = model.get("vocab_size")
    if not isinstance(vocab, int):
        raise ModelError(f"{folder / 'config.json'}: vocab_size is missing")
    try:
        return TextFiles(
            path=path,
            tokenizer=tokenizer,
            bos_token=_token_text(config.get("bos_token")),
            eos_token=_token_text(config.get("eos_token")),
            add_bos=config.get("add_bos_token"),
            eos_ids=_ids(generation.get("eos_token_id", model.get("eos_token_id"))),
            vocab=vocab,
            chat_template=_chat_template(folder, config),
        )
    except (LookupError, TypeError, ValueError) as error:
        raise ModelError(
            f"{folder}: bos_token, eos_token, eos_token_id or chat_template has a form "
            f"that is not known ({error!r})"
        ) from error


def _read(path: Path) -> Json:
    try:
        values = orjson.loads(path.read_bytes())
    except OSError as error:
        raise ModelError(f"{path}: {error.strerror or error}") from error
    except orjson.JSONDecodeError as error:
        raise ModelError(f"{path}: not JSON ({error})") from error
    if not isinstance(values, dict):
        raise ModelError(f"{path}: not a JSON object")
    return values


def _read_if_there(path: Path) -> Json:
    return _read(path) if path.exists() else {}


def _token_text(token: str | Json | None) -> str:
    """A token is written as its text, or as an object with the text and how it is matched."""
    if token is None:
        return ""
    return token if isinstance(token, str) else str(token["content"])


def _ids(ids: int | Sequence[int] | None) -> frozenset[int]:
    if ids is None:
        return frozenset()
    return frozenset(map(int, [ids] if isinstance(ids, int) else ids))


def _chat_template(folder: Path, config: Json) -> str | None:
    """The template in a file of its own, or in tokenizer_config.json: one, or several by name."""
    file = folder / "chat_template.jinja"
    if file.exists():
        return file.read_text(encoding="utf-8")
    template = config.get("chat_template")
    if isinstance(template, list):
        return {entry["name"]: entry["template"] for entry in template}.get("default")
    return template
