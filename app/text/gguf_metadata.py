"""What a GGUF file says about text: vocabulary, merges, end-of-sequence ids, chat template.

gguf's reader takes seconds over a vocabulary of 50,000 tokens, so what it found is kept in a cache
beside the model. An entry carries the SHA-256 of all it was read from, which is the file up to its
tensor data: a changed file never meets a stale entry, and looking one up does not read the weights.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from app.model_files import cache_directory, write_atomically
from engine.errors import ModelError

_FORMAT = 2
"""Layout of a cache entry; entries of another layout are made anew."""


@dataclass(frozen=True, slots=True)
class TokenizerMetadata:
    """The `tokenizer.*` keys of a GGUF file, and the context length in tokens.

    tokens and token_types (`gguf.TokenType`) are indexed by token id; a merge is two token texts
    joined by a space. model is the algorithm ("gpt2" is byte-level BPE), pre names how text is cut
    into words before it. add_bos is None where the file leaves it to `pre`.
    """

    model: str
    pre: str | None
    tokens: Sequence[str]
    token_types: Sequence[int]
    merges: Sequence[str]
    eos_ids: Sequence[int]
    eos_id: int | None
    bos_id: int | None
    add_bos: bool | None
    chat_template: str | None
    context_length: int | None


def load_metadata(path: Path) -> TokenizerMetadata:
    """Read the tokenizer of the GGUF file at `path`, from the cache beside it if it is there.

    Raises ModelError if the file is not there, is not GGUF or lacks a vocabulary.
    """
    entry = cache_directory(path) / f"{path.name}.tokenizer"
    cached = _read_entry(entry, path)
    if cached is not None:
        return cached
    metadata, head_bytes = _read_gguf(path)
    with contextlib.suppress(OSError):  # a read-only model directory costs time, nothing else
        _write_entry(entry, path, metadata, head_bytes)
    return metadata


def _read_entry(entry: Path, path: Path) -> TokenizerMetadata | None:
    """The cached metadata of the file at `path`, or None if the entry is not (rightly) there."""
    try:
        checksum, payload = entry.read_bytes().split(b"\n", 1)
        if hashlib.sha256(payload).hexdigest().encode() != checksum:
            return None
        record = orjson.loads(payload)
        if record["format"] != _FORMAT:
            return None
        if record["head_sha256"] != _head_sha256(path, record["head_bytes"]):
            return None
        return TokenizerMetadata(**record["metadata"])
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _write_entry(entry: Path, path: Path, metadata: TokenizerMetadata, head_bytes: int) -> None:
    payload = orjson.dumps(
        {
            "format": _FORMAT,
            "head_bytes": head_bytes,
            "head_sha256": _head_sha256(path, head_bytes),
            "metadata": dataclasses.asdict(metadata),
        }
    )
    write_atomically(entry, hashlib.sha256(payload).hexdigest().encode() + b"\n" + payload)


def _head_sha256(path: Path, length: int) -> str:
    with path.open("rb") as file:
        return hashlib.sha256(file.read(length)).hexdigest()


def _read_gguf(path: Path) -> tuple[TokenizerMetadata, int]:
    """The metadata, and how many bytes of the file come before its tensor data."""
    from gguf import GGUFReader

    if not path.is_file():
        raise ModelError(f"there is no model file {path}")
    try:
        reader = GGUFReader(path)
        fields = {key: field for key, field in reader.fields.items() if key.startswith(_PREFIXES)}
        values = {key: field.contents() for key, field in fields.items()}
        architecture = reader.fields["general.architecture"].contents()
        context = reader.fields.get(f"{architecture}.context_length")
        context_length = None if context is None else context.contents()
    except (OSError, ValueError, LookupError, OverflowError) as error:
        raise ModelError(f"{path} cannot be read as a GGUF file: {error}") from error
    return _metadata(path, values, context_length), int(reader.data_offset)


_PREFIXES = ("tokenizer.ggml.", "tokenizer.chat_template")


def _metadata(path: Path, values: dict[str, Any], context_length: int | None) -> TokenizerMetadata:
    for key in ("tokenizer.ggml.model", "tokenizer.ggml.tokens"):
        if key not in values:
            raise ModelError(f"{path} has no {key}: there is no vocabulary to build")
    tokens = values["tokenizer.ggml.tokens"]
    types = values.get("tokenizer.ggml.token_type", [1] * len(tokens))
    if len(types) != len(tokens):
        raise ModelError(f"{path}: {len(tokens)} tokens, but {len(types)} token types")
    ends = [values.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom")]
    bos = values.get("tokenizer.ggml.bos_token_id")
    for token in (bos, *ends):
        if token is not None and not 0 <= token < len(tokens):
            raise ModelError(f"{path}: token id {token} is outside the vocabulary")
    return TokenizerMetadata(
        model=values["tokenizer.ggml.model"],
        pre=values.get("tokenizer.ggml.pre"),
        tokens=tokens,
        token_types=types,
        merges=values.get("tokenizer.ggml.merges", []),
        eos_ids=sorted({token for token in ends if token is not None}),
        eos_id=ends[0],
        bos_id=bos,
        add_bos=values.get("tokenizer.ggml.add_bos_token"),
        chat_template=values.get("tokenizer.chat_template"),
        context_length=context_length,
    )
