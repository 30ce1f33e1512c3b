"""Last words: a connection ends a while after its stream was cut, unless the reply did before."""

import asyncio

from app import connection
from app.connection import HANG_UP, last_words


async def test_hanging_up_comes_after_the_last_words(monkeypatch):
    monkeypatch.setattr(connection, "LAST_WORDS_S", 0.01)
    gone = asyncio.Event()
    with last_words({"type": "http", HANG_UP: gone.set}) as begin:
        begin()
        assert not gone.is_set()
        await asyncio.wait_for(gone.wait(), 60)


async def test_a_reply_that_ends_in_time_keeps_its_connection(monkeypatch):
    monkeypatch.setattr(connection, "LAST_WORDS_S", 0.01)
    gone = asyncio.Event()
    with last_words({"type": "http", HANG_UP: gone.set}) as begin:
        begin()
    await asyncio.sleep(0.02)  # timers fire in their order: this one is the later
    assert not gone.is_set()


async def test_without_a_connection_to_end_nothing_happens():
    with last_words({"type": "http"}) as begin:
        assert begin() is None
