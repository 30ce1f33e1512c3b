"""Tokenizers: from text to token ids and from a token id to its bytes.

Control tokens (turn marks, end of text) stand outside the vocabulary that `encode` draws from, so
that nothing a user types can become one; a chat template's own are put in by `encode_segments`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import Protocol

import tokenizers

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

    def encode(self, text: str, *, continues: bool = False) -> list[int]:
        """Token ids of `text`, never a control token. Raises ValueError for a lone surrogate.

        continues: the text follows other tokens. Some vocabularies put a space before the first
        word of a text only.
        """
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

    def whole_text(self, token: int) -> str | None:
        """The text of a token that is whole characters by itself; None for control tokens, for
        parts of characters, and outside the vocabulary."""
        ...

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
        self._whole: dict[int, str | None] = {}
        self.vocab_size = len(pieces)
        self.control = MappingProxyType(dict(control))
        self.eos_ids = frozenset(eos_ids)
        self.prefix = prefix
        self.bos_token = bos_token
        self.eos_token = eos_token
        self.chat_template = chat_template

    @abstractmethod
    def _encode(self, text: str, continues: bool) -> list[int]:
        """Token ids of a text without lone surrogates; see `Tokenizer.encode`."""

    def encode(self, text: str, *, continues: bool = False) -> list[int]:
        reject_surrogates(text)
        return self._encode(text, continues)

    def fewest_tokens(self, text: str) -> int:
        return -(-len(text) // self._longest)

    def token_bytes(self, token: int) -> bytes:
        if not 0 <= token < self.vocab_size:
            raise ValueError(f"token id {token} is outside the vocabulary of {self.vocab_size}")
        return self._pieces[token]

    def is_control(self, token: int) -> bool:
        return token in self._control_ids

    def whole_text(self, token: int) -> str | None:
        try:
            return self._whole[token]
        except KeyError:
            return self._look_up(token)

    def _look_up(self, token: int) -> str | None:
        """Decode a token for the first time."""
        text = None
        if 0 <= token < self.vocab_size and token not in self._control_ids:
            with suppress(UnicodeDecodeError):
                text = self._pieces[token].decode()
            self._whole[token] = text
        return text

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

    def _encode(self, text: str, continues: bool) -> list[int]:
        return list(text.encode())


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


def encode_ids(tokenizer: tokenizers.Tokenizer, text: str) -> list[int]:
    """Token ids that the library gives for `text`, found while other threads run."""
    # Tokenizer.encode holds the GIL throughout (2.5 s for 2 MB); encode_batch_fast lets go.
    (encoding,) = tokenizer.encode_batch_fast([text], add_special_tokens=False)
    ids: list[int] = encoding.ids
    return ids
