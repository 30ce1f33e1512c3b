"""Token by token back to text, without ever emitting half a character."""

from __future__ import annotations

import codecs

from app.text.tokenizer import Tokenizer


class Detokenizer:
    """The running text of one sequence.

    What `feed` and `flush` return, joined, is `tokenizer.decode(ids, skip_special)`: bytes that may
    still become a character wait for the tokens that complete it, and nothing is trimmed.
    """

    def __init__(self, tokenizer: Tokenizer, skip_special: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._whole_text = tokenizer.whole_text
        self._pending = b""

    def feed(self, token: int) -> str:
        """The text that `token` completes; "" while a character is still open."""
        if not self._pending and (whole := self._whole_text(token)) is not None:
            return whole
        if self._skip_special and self._tokenizer.is_control(token):
            return ""
        received = self._pending + self._tokenizer.token_bytes(token)
        text, used = codecs.utf_8_decode(received, "replace", False)
        self._pending = received[used:]
        return text

    def flush(self) -> str:
        """End the sequence: bytes of a character that never came become U+FFFD."""
        text = self._pending.decode("utf-8", "replace")
        self._pending = b""
        return text
