"""The short text that shows a model what its activations are like, before they become int8."""

from __future__ import annotations

from importlib.resources import files

from app.text.tokenizer import Tokenizer, encode_prompt


def calibration_tokens(tokenizer: Tokenizer) -> list[int]:
    """Token ids of the text: prose, code, a dialogue, a letter, data, and the beginning of
    Shakespeare's Coriolanus (public domain); what is not his was written for it."""
    text = (files("app.text") / "calibration.txt").read_text(encoding="utf-8")
    return encode_prompt(tokenizer, text)
