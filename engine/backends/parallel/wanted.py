"""What each of several processes is told about the model that they are to compute."""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to be served, as each rank was told it.

    path: a GGUF file or a Hugging Face folder, of the same model for each rank. kv_dtype: a name in
    `kv_cache.FORMATS`. kv_memory_bytes: of this rank's cache; None for its share of
    `auto_kv_bytes()`. offload_memory_bytes: of this rank's blocks that are put away. threads: of
    this process; None leaves torch's choice. timeout_s: how long a step waits for a rank.
    """

    path: str | PathLike[str]
    kv_dtype: str = "float32"
    kv_memory_bytes: int | None = None
    offload_memory_bytes: int = 0
    threads: int | None = None
    timeout_s: float = 60.0
