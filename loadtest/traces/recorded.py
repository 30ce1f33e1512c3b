"""The requests of a recording as a trace: who arrived when, how long, sharing what."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from engine.batch import BLOCK
from engine.recorder import FULL, STOPS
from engine.simulation.arrival import Arrival, Prefix
from loadtest.recordings.files import RecordingFiles
from loadtest.recordings.turns import keys_of

_USUAL: Final = 128
"""Output tokens where no request of a recording has ended."""


@dataclass(slots=True)
class _Request:
    """A submission of a recording. generated, keys: by sequence; what is known of each."""

    row: Mapping[str, Any]
    keys: list[bytes]
    generated: dict[int, int] = field(default_factory=dict)
    grown: dict[int, list[bytes]] = field(default_factory=lambda: defaultdict(list))

    @property
    def answers(self) -> int:
        """How many sequences it is answered with."""
        return int(self.row.get("n", 1))


def recorded_arrivals(recording: RecordingFiles) -> list[Arrival]:
    """Every request that reached the engine, in the order in which it did.

    Tenants and classes have the names that stand for them in the recording. Each sequence of a
    request is a request of its own: the others find its prompt cached. Whoever left early gets as
    many tokens as it had by then; who was refused, failed, or had not ended when the recording did,
    as many as was usual, if it asked for that many.
    """
    requests: dict[int, _Request] = {}
    for row in recording.rows():
        if "now" in row:
            _take(row, requests)
    ended = [count for each in requests.values() for count in each.generated.values() if count]
    usual = round(statistics.median(ended)) if ended else _USUAL
    names = _Names()
    return [
        arrival for request in requests.values() for arrival in _arrivals(request, usual, names)
    ]


class _Names:
    """Small numbers for keys, and numbers that are nobody else's."""

    def __init__(self) -> None:
        self._known: dict[bytes, int] = {}
        self._next = 0

    def of(self, key: bytes) -> int:
        if key not in self._known:
            self._known[key] = self.another()
        return self._known[key]

    def another(self) -> int:
        self._next += 1
        return self._next


def _take(row: Mapping[str, Any], requests: dict[int, _Request]) -> None:
    for mail in row.get("mail", ()):
        if "request" in mail:
            requests[mail["request"]] = _Request(mail, keys_of(mail.get("keys", "")))
        elif "abort" in mail and (left := requests.get(mail["abort"])):
            for index, count in enumerate(mail["left"]):
                left.generated.setdefault(index, count)
        elif "finish" in mail and (cut := requests.get(mail["finish"])):
            cut.generated[mail["index"]] = mail["tokens"]
    for landed in row.get("landed", ()):
        for id, index, _, end, generated in landed.get("rows", ()) if landed else ():
            if end in (STOPS, FULL) and id in requests:
                requests[id].generated.setdefault(index, generated)
    for id, index, keys in row.get("keys", ()):
        if id in requests:
            requests[id].grown[index] += keys_of(keys)


def _arrivals(request: _Request, usual: int, names: _Names) -> Iterator[Arrival]:
    row = request.row
    for index in range(request.answers):
        most = row["max"]
        output = request.generated.get(index) or min(usual, most)
        yield Arrival(
            at=row["at"],
            prompt_tokens=row["prompt"],
            output_tokens=min(output, most),
            tenant=row["tenant"],
            slo_class=row["class"],
            priority=row.get("priority", 0),
            prefix=_prefix(request, index, names),
            max_tokens=most,
        )


def _prefix(request: _Request, index: int, names: _Names) -> Prefix | None:
    """Names of what its prompt and its answer consist of, if the recording has them.

    Of a beam search the answer has none: its sequences trade places.
    """
    prompt = request.row["prompt"]
    full = prompt // BLOCK
    keys = request.keys + request.grown.get(index, [])
    if len(keys) < full:
        return None
    known = [names.of(key) for key in keys[:full]]
    if prompt % BLOCK:
        known.append(names.another())
    answer = () if "beams" in request.row else tuple(map(names.of, keys[full:]))
    return Prefix(tuple(known), answer=answer)
