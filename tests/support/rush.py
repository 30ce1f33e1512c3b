"""More clients than can be served, as a program: `python rush.py URL SECONDS RATE SEED`.

Requests come at RATE a second whatever becomes of them (RATE 0: as fast as CROWD clients get their
answers, to see how many that are). Three classes; of the clients SLOW read a few bytes a second
and LEAVERS leave at a random moment. When the last request has been sent it prints "sent" on a
line, and when the last one has ended a list of what became of each, as JSON.

Plain sockets: a client has to cost less than what it asks for.
"""

from __future__ import annotations

import asyncio
import json
import random
import socket
import sys
from dataclasses import asdict, dataclass
from time import monotonic
from urllib.parse import urlsplit

CROWD = 24
SLOW = 0.005
LEAVERS = 0.1
LEAVE_S = 0.8
CLASSES = {"urgent": 0.1, "interactive": 0.45, "batch": 0.45}
PATIENCE_S = 300.0
SMALL_BUFFER = 2304
SLOW_TOKENS = 600
LONG_FRAMES = {"logprobs": 5, "return_token_ids": True}


@dataclass(slots=True)
class Ask:
    """What became of a request. Times in seconds from when it was sent; late: how much later than
    planned that was, which is this program's own lag."""

    slo_class: str
    kind: str
    late: float = 0.0
    status: int = 0
    head: float | None = None
    first: float | None = None
    last: float | None = None
    tokens: int = 0
    code: str = ""
    message: str = ""
    retry_after: int | None = None


class Crowd:
    """Clients of one server."""

    def __init__(self, url: str, seed: int) -> None:
        parts = urlsplit(url)
        self.host, self.port = parts.hostname or "", parts.port or 0
        self.rng = random.Random(seed)
        self.asks: list[Ask] = []
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    def ask(self) -> Ask:
        """Somebody, with whatever habits."""
        rng = self.rng
        slo_class = rng.choices([*CLASSES], [*CLASSES.values()])[0]
        kinds, weights = ["slow", "leaver", "patient"], [SLOW, LEAVERS, 1 - SLOW - LEAVERS]
        return Ask(slo_class, rng.choices(kinds, weights)[0])

    async def send(self, ask: Ask) -> None:
        self.asks.append(ask)
        doing = {"slow": self._slowly, "leaver": self._and_leave, "patient": self._patiently}
        try:
            await asyncio.wait_for(doing[ask.kind](ask), PATIENCE_S)
        except (OSError, asyncio.IncompleteReadError, TimeoutError) as error:
            ask.code = ask.code or type(error).__name__

    async def _patiently(self, ask: Ask) -> None:
        pair = self._idle.pop() if self._idle else None
        if pair is None or pair[1].is_closing() or pair[0].at_eof():
            pair = await asyncio.open_connection(self.host, self.port)
        reader, writer = pair
        try:
            writer.write(self._request(ask))
            if await self._read(ask, reader):
                self._idle.append(pair)
                pair = None
        finally:
            if pair is not None:
                writer.transport.abort()

    async def _and_leave(self, ask: Ask) -> None:
        reader, writer = await asyncio.open_connection(self.host, self.port)
        try:
            writer.write(self._request(ask))
            async with asyncio.timeout(self.rng.random() * LEAVE_S):
                await self._read(ask, reader)
        except TimeoutError:
            pass
        finally:
            writer.transport.abort()

    async def _slowly(self, ask: Ask) -> None:
        """With a small buffer, and a few bytes at a time: what is sent piles up at the server."""
        end = socket.socket()
        end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER)
        end.setblocking(False)
        loop = asyncio.get_running_loop()
        with end:
            await loop.sock_connect(end, (self.host, self.port))
            await loop.sock_sendall(end, self._request(ask))
            started = monotonic()
            got = await loop.sock_recv(end, 12)
            ask.head = monotonic() - started
            ask.status = int(got[9:12] or 0)
            while ask.status == 200 and (got := await loop.sock_recv(end, 256)):
                ask.tokens += got.count(b"data: ")
                ask.first = ask.first or ask.head
                await asyncio.sleep(0.1)

    def _request(self, ask: Ask) -> bytes:
        rng = self.rng
        body = {
            "prompt": "".join(rng.choices("abcdefgh ", k=rng.randint(20, 60))),
            "max_tokens": SLOW_TOKENS if ask.kind == "slow" else rng.randint(10, 30),
            "stream": True,
            "service_tier": ask.slo_class,
        }
        if ask.kind == "slow":
            body |= LONG_FRAMES
        content = json.dumps(body).encode()
        head = (
            "POST /v1/completions HTTP/1.1",
            "Host: localhost",
            "Content-Type: application/json",
            f"Content-Length: {len(content)}",
        )
        return "\r\n".join((*head, "", "")).encode() + content

    async def _read(self, ask: Ask, reader: asyncio.StreamReader) -> bool:
        """Read a reply; whether the connection may be used again."""
        started = monotonic()
        head = await reader.readuntil(b"\r\n\r\n")
        ask.head = monotonic() - started
        ask.status = int(head[9:12])
        fields = dict(
            line.split(b": ", 1) for line in head.lower().split(b"\r\n")[1:] if b": " in line
        )
        if ask.status != 200:
            body = json.loads(await reader.readexactly(int(fields[b"content-length"])))
            ask.code, ask.message = body["error"]["code"], body["error"]["message"]
            ask.retry_after = int(fields.get(b"retry-after", b"0")) or None
            return fields.get(b"connection") != b"close"
        while size := int(await reader.readline(), 16):
            chunk = await reader.readexactly(size + 2)
            ask.last = monotonic() - started
            if ask.first is None:
                ask.first = ask.last
            ask.tokens += chunk.count(b'"text":')
            if b"event: error" in chunk:
                ask.code = "error"
        await reader.readline()
        return fields.get(b"connection") != b"close"

    async def at_rate(self, rate: float, seconds: float) -> None:
        """Send at random moments, so many a second on average (a Poisson process)."""
        loop = asyncio.get_running_loop()
        begun = due = loop.time()
        async with asyncio.TaskGroup() as tasks:
            while due < begun + seconds:
                await asyncio.sleep(due - loop.time())
                ask = self.ask()
                ask.late = loop.time() - due
                tasks.create_task(self.send(ask))
                due += self.rng.expovariate(rate)
            print("sent", flush=True)

    async def in_turn(self, seconds: float) -> None:
        """Each of CROWD clients sends when it has its answer."""
        ends = monotonic() + seconds

        async def client() -> None:
            while monotonic() < ends:
                await self.send(Ask("batch", "patient"))

        await asyncio.gather(*(client() for _ in range(CROWD)))
        print("sent", flush=True)


async def main(url: str, seconds: float, rate: float, seed: int) -> None:
    crowd = Crowd(url, seed)
    await (crowd.at_rate(rate, seconds) if rate else crowd.in_turn(seconds))
    print(json.dumps([asdict(ask) for ask in crowd.asks]), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], float(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])))
