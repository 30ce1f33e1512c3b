"""How ranks find each other, and what becomes of a connection whose other end has gone."""

import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from typing import Any

import numpy as np
import pytest
import torch.distributed as dist
from support.ranks import HANG_S, HOST, met

from engine.backends.parallel.wire import HEAD, KEY, Kind, Link, array, call, fields, listen
from engine.errors import GroupLost

Pair = tuple[Link, Link]


@pytest.fixture
def pair() -> Iterator[Pair]:
    """Rank 0's end of a link, and rank 1's."""
    with met(2) as (here, there):
        yield here[1], there[1]


def test_messages_come_in_order_and_as_they_were_sent(pair: Pair):
    one, other = pair
    one.tell(Kind.ROOM, blocks=7)
    one.send_array(Kind.STEP, np.arange(5, dtype=np.int32))
    one.send(Kind.STOP)
    kind, body = other.receive()
    assert (kind, fields(body)) == (Kind.ROOM, {"blocks": 7})
    kind, body = other.receive()
    assert (kind, array(body).tolist()) == (Kind.STEP, [0, 1, 2, 3, 4])
    assert other.receive() == (Kind.STOP, b"")


def test_links_are_known_by_the_rank_of_their_other_end():
    with met(4) as (here, there):
        for rank, link in here.items():
            link.tell(Kind.ROOM, rank=rank)
        assert [fields(there[rank].receive()[1])["rank"] for rank in (3, 1, 2)] == [3, 1, 2]


def test_an_end_that_is_closed_is_the_end_of_the_file_there(pair: Pair):
    one, other = pair
    one.close()
    with pytest.raises(EOFError):
        other.receive()


def test_who_receives_hears_of_its_own_end_being_closed(pair: Pair):
    one, _ = pair
    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(one.receive)
        one.close()
        with pytest.raises((EOFError, OSError)):
            waiting.result(HANG_S)


def test_a_rank_that_does_not_come_is_named():
    store = dist.HashStore()
    with ThreadPoolExecutor() as threads:
        calling = threads.submit(call, store, HOST, HANG_S, 2)
        with pytest.raises(GroupLost, match=r"rank 1 did not come within 0.5 s"):
            listen(store, HOST, 3, 0.5)
        with closing(calling.result(HANG_S)) as left, pytest.raises(EOFError):
            left.receive()


@contextmanager
def listening() -> Iterator[tuple[dist.Store, int]]:
    """Rank 0 waits for rank 1, which comes in the end: the store, and the port."""
    store = dist.HashStore()
    with ThreadPoolExecutor() as threads:
        found = threads.submit(listen, store, HOST, 2, HANG_S)
        yield store, json.loads(store.get(KEY))["port"]
        with closing(call(store, HOST, HANG_S, 1)):
            links = found.result(HANG_S)
            assert list(links) == [1]
            links[1].close()


@pytest.mark.parametrize(
    "hello",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"",
        HEAD.pack(Kind.HELLO, 2**31),
        HEAD.pack(99, 0),
        *(
            HEAD.pack(kind, len(body)) + body
            for kind, body in [
                (Kind.HELLO, b"{}"),
                (Kind.HELLO, b"[1]"),
                (Kind.HELLO, b'{"word": "guess", "rank": 1}'),
                (Kind.STEP, b'{"rank": 1}'),
            ]
        ),
    ],
)
def test_strangers_are_hung_up_on_and_nobody_waits_for_them(hello: bytes):
    with listening() as (_, port), socket.create_connection((HOST, port)) as stranger:
        with suppress(OSError):  # it may be hung up on before it is through
            stranger.sendall(hello)
            stranger.shutdown(socket.SHUT_WR)
        assert gone(stranger)


def gone(connection: socket.socket) -> bool:
    """Whether the other end has hung up, perhaps without having read everything."""
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


@pytest.mark.parametrize("rank", [0, 2, True, "1", None])
def test_who_knows_the_word_but_is_no_rank_that_is_waited_for_is_a_stranger(rank: Any):
    with (
        listening() as (store, _),
        closing(call(store, HOST, HANG_S, rank)) as stranger,
        pytest.raises((EOFError, OSError)),
    ):
        stranger.receive()


def test_nobody_listens_once_all_have_come():
    with listening() as (_, port):
        pass
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((HOST, port))
