"""The configuration: schema, sources, checks."""

from app.config.checks import check_pool
from app.config.load import LoadedConfig, load_config, load_with_sources
from app.config.schema import Config

__all__ = ["Config", "LoadedConfig", "check_pool", "load_config", "load_with_sources"]
