"""The files of one model that the engines read, each made once and kept."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

from loadtest.peers.model_folder import write_float16, write_folder
from loadtest.peers.processes import run
from loadtest.peers.worker import DRIVERS

_CONVERT_S: Final = 900.0


class ModelFiles:
    """Formats of `gguf`, below `folder`. Each method gives a path; what is missing is made.

    They raise PeerFailed where another engine's tool does not make its format.
    """

    def __init__(self, gguf: Path, folder: Path) -> None:
        self.gguf = gguf
        digest = hashlib.sha256(gguf.read_bytes()).hexdigest()
        self._folder = folder / f"{gguf.stem}-{digest[:12]}"
        self._folder.mkdir(parents=True, exist_ok=True)

    def hugging_face(self) -> Path:
        """A folder as transformers writes it, in float32."""
        return self._once("hugging-face", lambda place: write_folder(self.gguf, place))

    def float16(self) -> Path:
        """A GGUF file in float16."""
        return self._once("float16.gguf", lambda place: write_float16(self.gguf, place))

    def q8_0(self, programs: Path) -> Path:
        """A GGUF file in Q8_0, by llama.cpp's own quantiser."""
        source = self.float16()
        quantise = [programs / "llama-quantize", source]
        return self._once(
            "q8_0.gguf", lambda place: _done(run([*quantise, place, "Q8_0"], timeout=_CONVERT_S))
        )

    def openvino(self, python: Path) -> Path:
        """A folder with an OpenVINO model, its weights in int8 by OpenVINO's own tools."""
        convert = [python, DRIVERS / "openvino_convert.py", self.float16()]
        return self._once(
            "openvino-int8", lambda place: _done(run([*convert, place], timeout=_CONVERT_S))
        )

    def _once(self, name: str, make: Callable[[Path], None]) -> Path:
        """The path `name`, made beside its place and moved there when it is whole."""
        place = self._folder / name
        if place.exists():
            return place
        part = self._folder / f"part-{name}"
        if part.is_dir():
            shutil.rmtree(part)
        if not part.suffix:
            part.mkdir()
        make(part)
        return part.rename(place)


def _done(output: str) -> None:
    """What a tool prints does not matter once it has made its file."""
