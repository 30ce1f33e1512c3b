"""The tokenizer of a Hugging Face folder: the BPE that its tokenizer.json describes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson
import tokenizers

from app.text.byte_level import piece_bytes
from app.text.hugging_face_files import Json, TextFiles, read_text_files
from app.text.tokenizer import PieceTokenizer, encode_ids
from engine.errors import ModelError

_BYTE = re.compile(r"<0x([0-9A-F]{2})>")
"""A byte in a SentencePiece vocabulary, for what it has no other token for."""


class HuggingFaceTokenizer(PieceTokenizer):
    """BPE as the `tokenizers` library runs it: byte-level, or SentencePiece with ▁ for a space.

    Added tokens that are special, and BOS and EOS, are control tokens; the others (such as
    `<think>`) are found in text. Text without a token is left out, be there an `unk_token` or not.
    Ids for which the folder has no text, up to the rows of the model's embedding, have no bytes.
    """

    def __init__(self, files: TextFiles) -> None:
        """Raises ModelError for a vocabulary that is not BPE, or not of one of the two kinds."""
        document = files.tokenizer
        model = document.get("model") or {}
        if model.get("type", "BPE") != "BPE":
            raise ModelError(f"model {model['type']} is not supported; supported: BPE")
        added, control = _added_tokens(files)
        vocabulary = {
            text: token
            for text, token in model.get("vocab", {}).items()
            if token < files.vocab and text not in control
        } | added
        self._first = _build(document, vocabulary, document.get("pre_tokenizer"))
        continuing = _without_first_space(document.get("pre_tokenizer"))
        self._continuing = (
            self._first
            if continuing == document.get("pre_tokenizer")
            else _build(document, vocabulary, continuing)
        )
        self._shortens = document.get("normalizer") is not None
        spell = _spelling(document)
        pieces = [b""] * files.vocab
        for text, token in vocabulary.items():
            pieces[token] = text.encode() if text in added else spell(text)
        for text, token in control.items():
            pieces[token] = text.encode()
        super().__init__(
            pieces,
            control,
            eos_ids=_eos_ids(files, control),
            prefix=_prefix(files, control),
            bos_token=files.bos_token,
            eos_token=files.eos_token,
            chat_template=files.chat_template,
        )

    @classmethod
    def from_folder(cls, folder: Path) -> HuggingFaceTokenizer:
        """Build from the files in `folder`. Raises ModelError, naming the file."""
        files = read_text_files(folder)
        try:
            return cls(files)
        except ModelError as error:
            raise ModelError(f"{files.path}: {error}") from error
        except (LookupError, TypeError, AttributeError) as error:
            raise ModelError(
                f"{files.path}: not as a tokenizer.json should be ({error!r})"
            ) from error

    def fewest_tokens(self, text: str) -> int:
        # Normalisation makes at most three characters one, of at least two bytes.
        return super().fewest_tokens(text) // (2 if self._shortens else 1)

    def _encode(self, text: str, continues: bool) -> list[int]:
        return encode_ids(self._continuing if continues else self._first, text)


def _added_tokens(files: TextFiles) -> tuple[dict[str, int], dict[str, int]]:
    """The added tokens that are found in text and those that are control tokens, text → id.

    Some folders add tokens for which the model has no row; nothing can be done with these.
    """
    found: dict[str, int] = {}
    control: dict[str, int] = {}
    for token in files.tokenizer.get("added_tokens", []):
        text, number = token["content"], token["id"]
        if number < files.vocab:
            special = token.get("special") or text in (files.bos_token, files.eos_token)
            (control if special else found)[text] = number
    return found, control


def _build(
    document: Json, vocabulary: Mapping[str, int], pre_tokenizer: Json | None
) -> tokenizers.Tokenizer:
    """The library's tokenizer over this vocabulary, without anything of control tokens."""
    changed = {
        **document,
        "model": {**document["model"], "vocab": vocabulary, "unk_token": None},
        "added_tokens": [t for t in document.get("added_tokens", []) if t["content"] in vocabulary],
        "pre_tokenizer": pre_tokenizer,
        "post_processor": None,
        "truncation": None,
        "padding": None,
    }
    try:
        return tokenizers.Tokenizer.from_str(orjson.dumps(changed).decode())
    except Exception as error:  # the library raises nothing more exact
        raise ModelError(f"not a tokenizer that the library reads ({error})") from error


def _parts(component: Json | None) -> Iterator[Json]:
    """A component of tokenizer.json, or those that it is a sequence of."""
    if component is None:
        return
    if component["type"] != "Sequence":
        yield component
        return
    for key in ("decoders", "pretokenizers", "processors"):
        for part in component.get(key, []):
            yield from _parts(part)


def _spelling(document: Json) -> Callable[[str], bytes]:
    """How the texts of ordinary tokens stand for bytes."""
    components = ("pre_tokenizer", "decoder")
    kinds = {part["type"] for key in components for part in _parts(document.get(key))}
    if "ByteLevel" in kinds:
        return piece_bytes
    if kinds & {"Metaspace", "ByteFallback"}:
        return _sentence_piece_bytes
    raise ModelError(
        f"pre_tokenizer and decoder ({', '.join(sorted(kinds)) or 'none'}) are not supported; "
        "supported: ByteLevel, Metaspace, ByteFallback"
    )


def _sentence_piece_bytes(text: str) -> bytes:
    byte = _BYTE.fullmatch(text)
    return bytes([int(byte[1], 16)]) if byte else text.replace("▁", " ").encode()


def _without_first_space(pre_tokenizer: Json | None) -> Json | None:
    """The pre-tokenizer for text in the middle, where no space goes before a first word."""
    if pre_tokenizer is None:
        return None
    changed = dict(pre_tokenizer)
    if changed["type"] == "Sequence":
        changed["pretokenizers"] = [_without_first_space(p) for p in changed["pretokenizers"]]
    elif changed.get("prepend_scheme") == "first":
        changed["prepend_scheme"] = "never"
    return changed


def _eos_ids(files: TextFiles, control: Mapping[str, int]) -> frozenset[int]:
    outside = sorted(token for token in files.eos_ids if not 0 <= token < files.vocab)
    if outside:
        raise ModelError(f"eos_token_id {outside[0]} is outside the vocabulary of {files.vocab}")
    own = control.get(files.eos_token)
    return files.eos_ids if own is None else files.eos_ids | {own}


def _prefix(files: TextFiles, control: Mapping[str, int]) -> tuple[int, ...]:
    """What prompts start with: add_bos_token decides, else the template of the post-processor."""
    if files.add_bos is not None:
        if files.add_bos and files.bos_token not in control:
            raise ModelError(f"add_bos_token is set, but {files.bos_token!r} is no added token")
        return (control[files.bos_token],) if files.add_bos else ()
    for part in _parts(files.tokenizer.get("post_processor")):
        if part["type"] == "TemplateProcessing":
            return tuple(control[text] for text in _leading(part["single"]) if text in control)
    return ()


def _leading(template: list[Any]) -> Iterator[str]:
    """The special tokens before the text, in a template such as `<s> $A </s>`."""
    for piece in template:
        if "SpecialToken" not in piece:
            return
        yield piece["SpecialToken"]["id"]
