"""The tensors in a folder of safetensors files: one file, or shards with an index."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open

from engine.errors import ModelError
from engine.models.shapes import Shape

if TYPE_CHECKING:
    import torch

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
DTYPES = ("F32", "F16", "BF16")
"""What weights may be stored as; they are computed with in float32."""


class SafetensorsFolder:
    """Every tensor of a model, by its name in the files.

    Files are opened one after the other, so that shards need no more memory than one file.
    Raises ModelError, naming the file, for whatever is missing or damaged.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file_of = _read_index(folder)
        self.shapes = dict(self._read_shapes())

    def load(self, name: str) -> torch.Tensor:
        """Tensor `name` as float32, in memory of its own."""
        import torch

        with _opened(self._folder / self._file_of[name], "pt") as file:
            tensor: torch.Tensor = file.get_tensor(name)
            return tensor.to(torch.float32, copy=True)

    def _read_shapes(self) -> Iterator[tuple[str, Shape]]:
        for file_name in sorted(set(self._file_of.values())):
            path = self._folder / file_name
            with _opened(path, "np") as file:
                held = set(file.keys())
                for name in (n for n, file_of in self._file_of.items() if file_of == file_name):
                    if name not in held:
                        raise ModelError(f"{path}: tensor {name} is missing, though {INDEX} has it")
                    yield name, _checked_shape(path, name, file.get_slice(name))


def _read_index(folder: Path) -> dict[str, str]:
    """Which file each tensor is in."""
    index = folder / INDEX
    if not index.exists():
        with _opened(folder / SINGLE, "np") as file:
            return dict.fromkeys(file.keys(), SINGLE)
    try:
        files = json.loads(index.read_bytes())["weight_map"]
        if not all(Path(name).name == name for name in files.values()):
            raise ValueError("a shard lies outside the folder")
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise ModelError(f"{index}: not an index of shards ({error})") from error
    return dict(files)


@contextmanager
def _opened(path: Path, framework: str) -> Iterator[Any]:
    if not path.is_file():
        raise ModelError(f"{path}: no such file; weights are read from {SINGLE} or from {INDEX}")
    try:
        with safe_open(path, framework=framework) as file:
            yield file
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{path}: the file is truncated or damaged ({error})") from error


def _checked_shape(path: Path, name: str, tensor: Any) -> Shape:
    dtype = tensor.get_dtype()
    if dtype not in DTYPES:
        supported = ", ".join(DTYPES)
        raise ModelError(
            f"{path}: tensor {name} has type {dtype}, which is not supported; "
            f"supported: {supported}"
        )
    return tuple(tensor.get_shape())
