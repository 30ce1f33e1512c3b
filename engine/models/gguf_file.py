"""Opening GGUF files: the package's reader made quick, and metadata with checked types.

Whatever is wrong with a file is a ModelError that names the file and the thing.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf.constants import GGUFValueType
from gguf.gguf_reader import GGUFReader

from engine.errors import ModelError
from engine.models.shapes import ModelPath

_DAMAGE = (ValueError, IndexError, KeyError, TypeError, OverflowError, struct.error)


class Reader(GGUFReader):
    """The package's reader, except that arrays are stepped over.

    Decoding a vocabulary of 49,152 strings item by item takes seconds, and no field that a model
    needs is an array.
    """

    def _get_field_parts(
        self, orig_offs: int, raw_type: int
    ) -> tuple[int, list[npt.NDArray[Any]], list[int], list[GGUFValueType]]:
        if raw_type != GGUFValueType.ARRAY or self.byte_order != "I":
            return super()._get_field_parts(orig_offs, raw_type)
        raw_item, count = struct.unpack_from("<IQ", self.data.data, orig_offs)
        begin = orig_offs + 12
        item = GGUFValueType(raw_item)
        if item == GGUFValueType.STRING:
            end = self._after_strings(begin, count)
        elif item in self.gguf_scalar_to_np:
            end = begin + count * np.dtype(self.gguf_scalar_to_np[item]).itemsize
        else:
            return super()._get_field_parts(orig_offs, raw_type)
        if end > len(self.data):
            raise ValueError("an array reaches beyond the end of the file")
        return end - orig_offs, [], [], [GGUFValueType.ARRAY, item]

    def _after_strings(self, offset: int, count: int) -> int:
        data = self.data.data
        for _ in range(count):
            (length,) = struct.unpack_from("<Q", data, offset)
            offset += 8 + length
        return offset


def open_gguf(path: ModelPath) -> Reader:
    """The file at `path`, mapped and its directory read. Raises ModelError."""
    try:
        with open(path, "rb") as file:
            magic = file.read(4)
    except OSError as error:
        raise ModelError(f"{path}: {error.strerror or error}") from error
    if magic != b"GGUF":
        raise ModelError(f"{path}: not a GGUF file")
    try:
        reader = Reader(path)
    except _DAMAGE as error:
        raise ModelError(f"{path}: the GGUF file is truncated or damaged ({error})") from error
    if reader.byte_order != "I":
        raise ModelError(f"{path}: the GGUF file has the byte order of another machine")
    return reader


class Metadata:
    """The scalar fields of a file, by key. Raises ModelError for what has the wrong type."""

    def __init__(self, path: ModelPath, reader: Reader) -> None:
        self._path = path
        self._fields = reader.fields

    def text(self, key: str, default: str | None = None) -> str:
        """A text; `default` stands for a key that is not there, unless it is None."""
        value = self._scalar(key, default)
        if not isinstance(value, str):
            raise ModelError(f"{self._path}: metadata key {key} should be a text, not {value!r}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A number above zero; `default` as in `text`."""
        value = self._scalar(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
            raise ModelError(
                f"{self._path}: metadata key {key} should be a positive number, not {value!r}"
            )
        return value

    def __contains__(self, key: str) -> bool:
        return key in self._fields

    def _scalar(self, key: str, default: object) -> object:
        field = self._fields.get(key)
        if field is None:
            if default is None:
                raise ModelError(f"{self._path}: metadata key {key} is missing")
            return default
        if field.types[0] == GGUFValueType.ARRAY:
            raise ModelError(f"{self._path}: metadata key {key} is a list, which is not supported")
        return field.contents()
