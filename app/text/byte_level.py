"""Byte-level vocabularies: GPT-2's alphabet, in which every byte is a visible letter."""

from __future__ import annotations


def _byte_alphabet() -> dict[int, int]:
    """Letter → byte: visible Latin-1 for itself, the rest from U+0100 up."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in set(visible)]
    return dict(zip(visible, visible, strict=True)) | {
        0x100 + index: byte for index, byte in enumerate(hidden)
    }


_LETTER_TO_BYTE = _byte_alphabet()
_ALPHABET = frozenset(map(chr, _LETTER_TO_BYTE))


def piece_bytes(text: str) -> bytes:
    """The bytes that a token spelled in the alphabet stands for; of any other text its UTF-8."""
    if not _ALPHABET.issuperset(text):
        return text.encode()
    return text.translate(_LETTER_TO_BYTE).encode("latin-1")
