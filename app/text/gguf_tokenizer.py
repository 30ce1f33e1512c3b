"""The tokenizer of a GGUF file: byte-level BPE from its vocabulary and merges."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import tokenizers
from gguf import TokenType
from tokenizers import models

from app.text.byte_level import piece_bytes
from app.text.gguf_metadata import TokenizerMetadata, load_metadata
from app.text.pre_tokenizers import PRE_TOKENIZERS, Pre
from app.text.tokenizer import PieceTokenizer, encode_ids
from engine.errors import ModelError


class GGUFTokenizer(PieceTokenizer):
    """Byte-level BPE built from a GGUF file's vocabulary and merges.

    A byte for which the vocabulary has no token (SmolLM2 lacks 21, of which six are ASCII control
    characters) is left out by `encode`, as llama.cpp does.
    """

    def __init__(self, metadata: TokenizerMetadata) -> None:
        """Raises ModelError for an algorithm or a pre-tokenizer that is not known."""
        control = {
            text: token
            for token, text in enumerate(metadata.tokens)
            if metadata.token_types[token] in (TokenType.CONTROL, TokenType.UNKNOWN)
        }
        pre = _pre(metadata)
        self.metadata = metadata
        self._bpe = _build_bpe(metadata, pre, control)
        super().__init__(
            [_piece(*token) for token in zip(metadata.tokens, metadata.token_types, strict=True)],
            control,
            eos_ids=metadata.eos_ids,
            prefix=_bos_prefix(metadata, pre),
            bos_token=_token_text(metadata, metadata.bos_id),
            eos_token=_token_text(metadata, metadata.eos_id),
            chat_template=metadata.chat_template,
        )

    @classmethod
    def from_file(cls, path: Path) -> GGUFTokenizer:
        """Build from the GGUF file at `path` (see `load_metadata`). Raises ModelError."""
        metadata = load_metadata(path)
        try:
            return cls(metadata)
        except ModelError as error:
            raise ModelError(f"{path}: {error}") from error

    def _encode(self, text: str, continues: bool) -> list[int]:
        return encode_ids(self._bpe, text)


def _pre(metadata: TokenizerMetadata) -> Pre:
    if metadata.model != "gpt2":
        raise ModelError(
            f"tokenizer.ggml.model is {metadata.model!r}; only gpt2 (byte-level BPE) is known"
        )
    pre = PRE_TOKENIZERS.get(metadata.pre or "")
    if pre is None:
        known = ", ".join(sorted(PRE_TOKENIZERS))
        raise ModelError(f"tokenizer.ggml.pre is {metadata.pre!r}; known are: {known}")
    return pre


def _build_bpe(
    metadata: TokenizerMetadata, pre: Pre, control: Mapping[str, int]
) -> tokenizers.Tokenizer:
    vocabulary = {text: token for token, text in enumerate(metadata.tokens) if text not in control}
    merges = [_merge(text, vocabulary) for text in metadata.merges]
    bpe = tokenizers.Tokenizer(
        models.BPE(vocab=vocabulary, merges=merges, ignore_merges=pre.whole_words)
    )
    bpe.pre_tokenizer = pre.pre_tokenizer()
    bpe.add_tokens(_user_defined(metadata))
    return bpe


def _merge(text: str, vocabulary: Mapping[str, int]) -> tuple[str, str]:
    left, _, right = text.partition(" ")
    for token in (left, right, left + right):
        if token not in vocabulary:
            raise ModelError(f"tokenizer.ggml.merges has {text!r}, but {token!r} is no plain token")
    return left, right


def _user_defined(metadata: TokenizerMetadata) -> list[tokenizers.AddedToken]:
    """Tokens that are found in plain text before it is cut into words, as llama.cpp does."""
    return [
        tokenizers.AddedToken(text, normalized=False)
        for text, kind in zip(metadata.tokens, metadata.token_types, strict=True)
        if kind == TokenType.USER_DEFINED
    ]


def _piece(text: str, kind: int) -> bytes:
    """The bytes of a token whose text in the file is `text`."""
    if kind == TokenType.BYTE:
        return bytes([int(text.removeprefix("<0x").removesuffix(">"), 16)])
    if kind in (TokenType.CONTROL, TokenType.UNKNOWN, TokenType.USER_DEFINED):
        return text.encode()
    return piece_bytes(text)


def _bos_prefix(metadata: TokenizerMetadata, pre: Pre) -> tuple[int, ...]:
    wanted = pre.adds_bos if metadata.add_bos is None else metadata.add_bos
    return (metadata.bos_id,) if wanted and metadata.bos_id is not None else ()


def _token_text(metadata: TokenizerMetadata, token: int | None) -> str:
    return "" if token is None else metadata.tokens[token]
