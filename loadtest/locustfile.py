"""Users for Locust who read streams: TTFT, ITL, TPOT, E2E and the queue are rows of their own.

    locust -f loadtest/locustfile.py --host http://localhost:8000 --headless --csv out

Rows are fired for all users together (type `all`) and for each group (by its name), in ms:

    TTFT   from sending a request to its first chunk
    ITL    mean gap between the chunks of a request; what is pooled over requests is in the records
    TPOT   (last chunk - first chunk) / (tokens - 1)
    E2E    from sending a request to its last chunk
    queue  from arrival to admission, by the server's word (`api.per_request_metrics`)

The row of the POST ends with the last byte; it is the one that fails, with the error's code. Token
counts are the server's: nothing is tokenised here, which would hold up everybody's next token.

OCTAVO_LOAD_USERS    who asks for what (default: loadtest/load/users.yaml)
OCTAVO_LOAD_SHAPE    steady, step, spike or soak; --users and --run-time say how many, how long
OCTAVO_LOAD_RECORDS  a file for every request with the times of its chunks, as JSON lines
"""

from __future__ import annotations

import itertools
import json
import os
import random
import time
from http.client import HTTPException
from pathlib import Path
from typing import Any, ClassVar

import orjson
from geventhttpclient import HTTPClient
from locust import LoadTestShape, User, events, task

from loadtest.live.prompts import Prompts, sample_text
from loadtest.live.records import LiveRecord, jsonable
from loadtest.live.stream import Stream
from loadtest.load.shapes import SHAPES
from loadtest.load.users import USUAL, Group, read_groups
from loadtest.traces import Arrival

PATH = "/v1/completions"
TIMEOUT_S = 600.0
STARTED = time.perf_counter()
SHAPE = SHAPES[os.environ.get("OCTAVO_LOAD_SHAPE", "steady")]
RECORDS = os.environ.get("OCTAVO_LOAD_RECORDS")
GROUPS = read_groups(Path(os.environ.get("OCTAVO_LOAD_USERS", USUAL)))

_numbers = itertools.count()


class Failed(Exception):
    """A request that went wrong, told by a code alone, so that Locust counts like ones together."""


class House:
    """What all users have in common, asked of the server once: its model, and words for prompts."""

    model = ""
    prompts: Prompts

    @classmethod
    def enter(cls, host: str, key: str | None) -> None:
        """Ask the server. Raises OSError, LookupError or ValueError where it does not answer."""
        client = HTTPClient.from_url(host, network_timeout=TIMEOUT_S)
        headers = _headers(key)
        served = json.loads(client.get("/v1/models", headers=headers).read())["data"][0]
        text = sample_text(served.get("max_model_len") or 2048)
        body = orjson.dumps({"prompt": text, "add_special_tokens": False})
        tokens = json.loads(client.post("/tokenize", body=body, headers=headers).read())["tokens"]
        cls.model = served["id"]
        cls.prompts = Prompts(sorted(set(tokens)), seed=random.SystemRandom().getrandbits(32))
        client.close()


@events.test_start.add_listener
def _enter(environment: Any, **_: Any) -> None:
    House.enter(environment.host, GROUPS[0].key)


class Reader(User):
    """Asks, reads the stream to its end, thinks, and asks again."""

    abstract = True
    group: ClassVar[Group]

    def __init__(self, environment: Any) -> None:
        super().__init__(environment)
        self.client = HTTPClient.from_url(
            self.host or environment.host,
            concurrency=1,
            network_timeout=TIMEOUT_S,
            connection_timeout=TIMEOUT_S,
        )
        self.chance = random.Random(next(_numbers))

    def wait_time(self) -> float:
        return self.group.thinking(self.chance)

    @task
    def complete(self) -> None:
        """One request; all that is to be told of it is told when it has ended."""
        record, body = self._request()
        stream = Stream()
        began = time.perf_counter()
        self._read(record, body, stream)
        took = 1e3 * (time.perf_counter() - began)
        record.sent_at = began - STARTED
        record.chunk_times.extend(at - STARTED for at in stream.chunk_times)
        self._fire("POST", PATH, took, None if record.error is None else Failed(record.error))
        if record.error is None:
            self._tell(record)
        _keep(record)

    def _request(self) -> tuple[LiveRecord, bytes]:
        group, chance = self.group, self.chance
        prompt = group.prompt_tokens.draw(chance)
        output = group.output_tokens.draw(chance)
        shared = round(group.shared_prefix * prompt)
        ids = House.prompts.drawn(group.name, group.prompt_tokens.most)[:shared]
        ids += House.prompts.drawn(f"{os.getpid()} {next(_numbers)}", prompt - shared)
        body = {
            "model": House.model,
            "prompt": ids,
            "max_tokens": output,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if group.service_tier:
            body["service_tier"] = group.service_tier
        at = time.perf_counter() - STARTED
        tier = group.service_tier or "default"
        return LiveRecord(Arrival(at, prompt, output, group.name, tier)), orjson.dumps(body)

    def _read(self, record: LiveRecord, body: bytes, stream: Stream) -> None:
        """Send, and read line by line: each line is there as soon as it has come."""
        try:
            response = self.client.post(PATH, body=body, headers=_headers(self.group.key))
            record.status = response.status_code
            if record.status != 200:
                stream.take(response.read(), 0.0)
                stream.fail(record.status)
            else:
                while not stream.done and (line := response.readline(b"\n")):
                    stream.take(line, time.perf_counter())
                response.read()
        except TimeoutError:
            stream.error = "timeout"
        except (OSError, HTTPException) as error:
            stream.error = stream.error or type(error).__name__
        record.note(stream)

    def _tell(self, record: LiveRecord) -> None:
        """Fire a row for each latency."""
        done = record.as_simulated(since_sent=True)
        chunks = record.chunk_times
        measured = {"TTFT": done.ttft, "E2E": done.e2e}
        if record.output_tokens > 1:
            measured["TPOT"] = (chunks[-1] - chunks[0]) / (record.output_tokens - 1)
        if len(chunks) > 1:
            measured["ITL"] = (chunks[-1] - chunks[0]) / (len(chunks) - 1)
        if record.queue_s is not None:
            measured["queue"] = record.queue_s
        for name, seconds in measured.items():
            self._fire("all", name, 1e3 * seconds)
            self._fire(self.group.name, name, 1e3 * seconds)

    def _fire(
        self, kind: str, name: str, milliseconds: float, error: Exception | None = None
    ) -> None:
        self.environment.events.request.fire(
            request_type=kind,
            name=name,
            response_time=milliseconds,
            response_length=0,
            exception=error,
            context={"group": self.group.name},
        )


class Shape(LoadTestShape):
    """As many users as the shape says, for as long as --run-time."""

    use_common_options = True

    def tick(self) -> tuple[int, float] | None:
        options = self.runner.environment.parsed_options
        users, duration = options.num_users or 8, options.run_time or 120
        at = self.get_run_time()
        return None if at >= duration else (SHAPE(at, duration, users), options.spawn_rate or users)


def _headers(key: str | None) -> dict[str, str]:
    headers = {"Content-Type": "application/json"}
    return {**headers, "Authorization": f"Bearer {key}"} if key else headers


def _keep(record: LiveRecord) -> None:
    """Write it down, if somebody wants to have it."""
    if RECORDS:
        with open(RECORDS, "ab") as file:
            file.write(orjson.dumps(jsonable(record)) + b"\n")


def _users() -> dict[str, type[Reader]]:
    """A class of users for each group, as Locust looks for them in this module."""
    classes = {}
    for group in GROUPS:
        name = f"Users_{group.name}"
        classes[name] = type(name, (Reader,), {"group": group, "weight": group.weight})
    return classes


globals().update(_users())
