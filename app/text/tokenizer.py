"""Tokenizers: from text to token ids and from a token id to its bytes.

Control tokens (turn marks, end of text) stand outside the vocabulary that `encode` draws from, so
that nothing a user types can become one; a chat template's own are put in by `encode_segments`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

import tokenizers
from gguf import TokenType
from tokenizers import models, pre_tokenizers
from tokenizers.pre_tokenizers import PreTokenizer

from app.text.gguf_metadata import TokenizerMetadata, load_metadata
from engine.errors import ModelError

CHATML_TEMPLATE = """\
{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] }}\
{{ '<|im_end|>\n' }}{% endfor %}\
{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""
"""ChatML (https://github.com/openai/openai-python/blob/v0.28.1/chatml.md), nothing added."""


class Tokenizer(Protocol):
    """Text to token ids and back."""

    @property
    def vocab_size(self) -> int:
        """Valid ids are 0 .. vocab_size - 1."""
        ...

    @property
    def eos_ids(self) -> frozenset[int]:
        """The ids with which the model ends a sequence."""
        ...

    @property
    def control(self) -> Mapping[str, int]:
        """Control-token text → id."""
        ...

    @property
    def prefix(self) -> tuple[int, ...]:
        """The ids a plain prompt starts with: BOS where the model file asks for it, else none."""
        ...

    @property
    def bos_token(self) -> str:
        """Text of the begin-of-sequence token for templates; "" if there is none."""
        ...

    @property
    def eos_token(self) -> str:
        """Text of the end-of-sequence token for templates; "" if there is none."""
        ...

    @property
    def chat_template(self) -> str | None:
        """Source of the model's chat template."""
        ...

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`, never a control token. Raises ValueError for a lone surrogate."""
        ...

    def fewest_tokens(self, text: str) -> int:
        """A lower bound on `len(encode(text))`, at once: refuses over-long text before the work."""
        ...

    def token_bytes(self, token: int) -> bytes:
        """The bytes one token stands for, perhaps part of a character; a control token's text.

        Raises ValueError for an id outside the vocabulary.
        """
        ...

    def is_control(self, token: int) -> bool: ...

    def decode(self, ids: Iterable[int], skip_special: bool = True) -> str:
        """The text of `ids`; bytes that are not UTF-8 become U+FFFD."""
        ...


def encode_prompt(tokenizer: Tokenizer, text: str) -> list[int]:
    """Token ids of a plain prompt (no chat template)."""
    return [*tokenizer.prefix, *tokenizer.encode(text)]


class PieceTokenizer(ABC):
    """What every tokenizer with a table of token bytes shares; all but the encoding itself."""

    def __init__(
        self,
        pieces: Sequence[bytes],
        control: Mapping[str, int],
        *,
        eos_ids: Iterable[int],
        prefix: tuple[int, ...] = (),
        bos_token: str = "",
        eos_token: str = "",
        chat_template: str | None = None,
    ) -> None:
        self._pieces = pieces
        self._control_ids = frozenset(control.values())
        ordinary = (len(p) for token, p in enumerate(pieces) if token not in self._control_ids)
        self._longest = max(ordinary, default=1)
        self.vocab_size = len(pieces)
        self.control = MappingProxyType(dict(control))
        self.eos_ids = frozenset(eos_ids)
        self.prefix = prefix
        self.bos_token = bos_token
        self.eos_token = eos_token
        self.chat_template = chat_template

    @abstractmethod
    def _encode(self, text: str) -> list[int]:
        """Token ids of a text without lone surrogates."""

    def encode(self, text: str) -> list[int]:
        reject_surrogates(text)
        return self._encode(text)

    def fewest_tokens(self, text: str) -> int:
        return -(-len(text) // self._longest)

    def token_bytes(self, token: int) -> bytes:
        if not 0 <= token < self.vocab_size:
            raise ValueError(f"token id {token} is outside the vocabulary of {self.vocab_size}")
        return self._pieces[token]

    def is_control(self, token: int) -> bool:
        return token in self._control_ids

    def decode(self, ids: Iterable[int], skip_special: bool = True) -> str:
        hidden = self._control_ids if skip_special else frozenset()
        pieces = (self.token_bytes(token) for token in ids if token not in hidden)
        return b"".join(pieces).decode("utf-8", "replace")


class ByteTokenizer(PieceTokenizer):
    """One token for each byte and the two marks of ChatML: serves text without a model file."""

    def __init__(self) -> None:
        control = {"<|im_start|>": 256, "<|im_end|>": 257}
        pieces = [bytes([byte]) for byte in range(256)] + [text.encode() for text in control]
        super().__init__(
            pieces,
            control,
            eos_ids={257},
            eos_token="<|im_end|>",
            chat_template=CHATML_TEMPLATE,
        )

    def _encode(self, text: str) -> list[int]:
        return list(text.encode())


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
        self.metadata = metadata
        self._bpe = _build_bpe(metadata, control)
        super().__init__(
            [_piece(*token) for token in zip(metadata.tokens, metadata.token_types, strict=True)],
            control,
            eos_ids=metadata.eos_ids,
            prefix=_bos_prefix(metadata),
            bos_token=_token_text(metadata, metadata.bos_id),
            eos_token=_token_text(metadata, metadata.eos_id),
            chat_template=metadata.chat_template,
        )

    @classmethod
    def from_file(cls, path: Path) -> GGUFTokenizer:
        """Build from the GGUF file at `path` (see `load_metadata`). Raises ModelError."""
        return cls(load_metadata(path))

    def _encode(self, text: str) -> list[int]:
        # Tokenizer.encode holds the GIL throughout (2.5 s for 2 MB); encode_batch_fast lets go.
        (encoding,) = self._bpe.encode_batch_fast([text], add_special_tokens=False)
        return encoding.ids


def reject_surrogates(text: str) -> None:
    """Raise ValueError if `text` holds half of a surrogate pair, which UTF-8 cannot carry."""
    if text.isascii():
        return
    try:
        text.encode()
    except UnicodeEncodeError as error:
        code = ord(text[error.start])
        raise ValueError(
            f"the text holds a lone surrogate, U+{code:04X}, at character {error.start}"
        ) from None


def _smollm() -> PreTokenizer:
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )


PRE_TOKENIZERS: Mapping[str, Callable[[], PreTokenizer]] = MappingProxyType({"smollm": _smollm})
"""`tokenizer.ggml.pre` → how text is cut into words before the merges."""


def _build_bpe(metadata: TokenizerMetadata, control: Mapping[str, int]) -> tokenizers.Tokenizer:
    if metadata.model != "gpt2":
        raise ModelError(
            f"tokenizer.ggml.model is {metadata.model!r}; only gpt2 (byte-level BPE) is known"
        )
    pre_tokenizer = PRE_TOKENIZERS.get(metadata.pre or "")
    if pre_tokenizer is None:
        known = ", ".join(sorted(PRE_TOKENIZERS))
        raise ModelError(f"tokenizer.ggml.pre is {metadata.pre!r}; known are: {known}")
    vocabulary = {text: token for token, text in enumerate(metadata.tokens) if text not in control}
    merges = [_merge(text, vocabulary) for text in metadata.merges]
    bpe = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    bpe.pre_tokenizer = pre_tokenizer()
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


def _byte_alphabet() -> dict[int, int]:
    """GPT-2's alphabet, letter → byte: visible Latin-1 for itself, the rest from U+0100 up."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in set(visible)]
    return dict(zip(visible, visible, strict=True)) | {
        0x100 + index: byte for index, byte in enumerate(hidden)
    }


_LETTER_TO_BYTE = _byte_alphabet()
_ALPHABET = frozenset(map(chr, _LETTER_TO_BYTE))


def _piece(text: str, kind: int) -> bytes:
    """The bytes of a token whose text in the file is `text`."""
    if kind == TokenType.BYTE:
        return bytes([int(text.removeprefix("<0x").removesuffix(">"), 16)])
    spelled_out = kind in (TokenType.CONTROL, TokenType.UNKNOWN, TokenType.USER_DEFINED)
    if spelled_out or not _ALPHABET.issuperset(text):
        return text.encode()
    return text.translate(_LETTER_TO_BYTE).encode("latin-1")


def _bos_prefix(metadata: TokenizerMetadata) -> tuple[int, ...]:
    if metadata.add_bos and metadata.bos_id is not None:
        return (metadata.bos_id,)
    return ()


def _token_text(metadata: TokenizerMetadata, token: int | None) -> str:
    return "" if token is None else metadata.tokens[token]
