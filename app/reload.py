"""SIGHUP: read the configuration again, and let what can change without a restart change."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any, Final

import structlog

from app.bridge import Bridge, NotReady
from app.config import Config, LoadedConfig
from app.policy_desk import PolicyDesk
from app.tenancy import Tenancy, class_limits
from engine.errors import ConfigurationError
from engine.outputs import Handover

log = structlog.stdlib.get_logger("octavo.audit")

LIVE: Final = ("scheduler", "classes", "tenants", "identity")
"""Sections that can change while requests are in flight."""

BY: Final = "SIGHUP"


class Reload:
    """Compares what the configuration says now with what it said when it was last read.

    Only what has changed is touched: a policy that was put in charge over HTTP stays until the
    file names another one than before. All of it holds from one moment on, or nothing does.
    """

    def __init__(
        self, loaded: LoadedConfig, desk: PolicyDesk, tenancy: Tenancy, bridge: Bridge
    ) -> None:
        self._config = loaded.config
        self._read = loaded.read_again
        self._desk = desk
        self._tenancy = tenancy
        self._bridge = bridge
        self._turn = asyncio.Lock()

    async def __call__(self) -> None:
        """Reload, or say in the log why not and leave everything as it is."""
        async with self._turn:
            try:
                loaded = await asyncio.to_thread(self._read)
                await self._adopt(loaded.config)
            except ConfigurationError as error:
                why = str(error).splitlines()
                log.error("configuration not reloaded", by=BY, why=why)
            except NotReady as error:
                log.error("configuration not reloaded", by=BY, why=[str(error)])

    async def _adopt(self, new: Config) -> None:
        old = self._config
        differing = set(_differences(old.model_dump(), new.model_dump()))
        changed = {key for key in differing if key.partition(".")[0] in LIVE}
        if waiting := sorted(differing - changed):
            log.warning("these changes wait for a restart", keys=waiting)
        await self._reconfigure(old, new)
        self._desk.allow(new.scheduler)
        self._tenancy.adopt(new)
        self._config = old.model_copy(update={name: getattr(new, name) for name in LIVE})
        log.info("configuration reloaded", by=BY, changed=sorted(changed))

    async def _reconfigure(self, old: Config, new: Config) -> None:
        """What the engine has to be told: first of all, because it may fail."""
        classes = class_limits(new) if class_limits(new) != class_limits(old) else None
        before, after = old.scheduler, new.scheduler
        if (before.policy, before.params) != (after.policy, after.params):
            await self._desk.swap(after, BY, classes)
        elif classes is not None:
            await self._bridge.reconfigure(None, classes, _nothing)


def _nothing(handover: Handover) -> None:
    """Class limits alone leave whoever is in charge there."""


def _differences(old: Mapping[str, Any], new: Mapping[str, Any], above: str = "") -> Iterator[str]:
    """The dotted keys whose values differ; never the values, which may be secrets."""
    for name in {**old, **new}:
        before, after = old.get(name), new.get(name)
        if isinstance(before, dict) and isinstance(after, dict):
            yield from _differences(before, after, f"{above}{name}.")
        elif before != after or (name in old) != (name in new):
            yield f"{above}{name}"
