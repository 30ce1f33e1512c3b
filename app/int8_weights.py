"""Makes the int8 weights of the default model ahead: `python -m app.int8_weights [DIRECTORY]`."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

from rich.console import Console

from app.model_files import ensure_default_model
from app.text.calibration import calibration_tokens
from app.text.files import load_tokenizer
from engine.backends import load_on_cpu
from engine.errors import ConfigurationError

KV_BYTES = 64 << 20
"""Of a KV cache that nothing is written to."""


def main() -> int:
    """Make and keep them in DIRECTORY (models/), unless they are there; what is made is logged."""
    directory = Path(sys.argv[1]) if len(sys.argv) > 1 else Path("models")
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    try:
        path = ensure_default_model(directory, console=Console(stderr=True))
    except ConfigurationError as error:
        print(error, file=sys.stderr)
        return 1
    calibration = calibration_tokens(load_tokenizer(path))
    load_on_cpu(
        path, dtype="int8", calibration=calibration, folder=directory, kv_memory_bytes=KV_BYTES
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
