"""Tokenizers on disk, whatever their format: in a GGUF file, or in a Hugging Face folder."""

from __future__ import annotations

from pathlib import Path

from app.text.gguf_tokenizer import GGUFTokenizer
from app.text.hugging_face import HuggingFaceTokenizer
from app.text.tokenizer import Tokenizer


def load_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer of the model at `path`. Raises ModelError, naming the file and the thing."""
    if path.is_dir():
        return HuggingFaceTokenizer.from_folder(path)
    return GGUFTokenizer.from_file(path)
