"""A machine that is busy with something else is no engine that is stuck."""

from __future__ import annotations

import pytest

from app import bridge


@pytest.fixture(autouse=True)
def _patience_with_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bridge, "INSPECTION_S", 60.0)
    monkeypatch.setattr(bridge, "STUCK_S", 60.0)
