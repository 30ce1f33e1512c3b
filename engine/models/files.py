"""Models on disk, whatever their format: a GGUF file, or a folder as Hugging Face lays it out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from engine.models import gguf, hugging_face
from engine.models.config import ModelConfig
from engine.models.shapes import ModelPath

if TYPE_CHECKING:
    from engine.models.weights import Cut, Keep, Weights


def read_config(path: ModelPath) -> ModelConfig:
    """The configuration of the model at `path`, whose tensors are checked against it.

    Raises ModelError for a file or folder that is not there, damaged, or of an unsupported kind.
    """
    path = Path(path)
    return hugging_face.read_config(path) if path.is_dir() else gguf.read_config(path)


def load_weights(
    path: ModelPath, config: ModelConfig, keep: Keep | None = None, cut: Cut | None = None
) -> Weights:
    """The weights of the model at `path`, whose configuration is `config`, as float32 tensors.

    keep: what the matrices of its layers are kept as; None: as they are. cut: what is kept of each
    tensor; None: all.
    """
    path = Path(path)
    if path.is_dir():
        return hugging_face.load_weights(path, config, keep, cut)
    return gguf.load_weights(path, config, keep, cut)
