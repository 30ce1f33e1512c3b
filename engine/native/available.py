"""Whether the native library can be used here, and for this model; why not is logged once."""

from __future__ import annotations

import ctypes
import logging

from engine.models.config import ModelConfig
from engine.native.build import library_path
from engine.native.library import open_library
from engine.native.model import suits

log = logging.getLogger("octavo.engine")

SLOWER = "int8 products run in torch, two to six times slower"


def native_library(config: ModelConfig) -> ctypes.CDLL | None:
    """The library, if it was built and suits the model."""
    path = library_path()
    if not path.exists():
        log.warning("the native library was not built (make setup builds it): %s", SLOWER)
        return None
    reason = suits(config)
    if reason:
        log.warning("the native library cannot compute this model (%s): %s", reason, SLOWER)
        return None
    try:
        return open_library(path)
    except OSError as error:
        log.warning("the native library cannot be loaded (%s): %s", error, SLOWER)
        return None
