"""`octavo blocks`: the pool of a live server as text, and one clear line when there is none."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
import structlog
from click.testing import CliRunner, Result
from rich.console import Console
from support.serving import COMPLETIONS, serving

from app import admin_client
from app.cli import main
from app.commands import blocks as command
from app.pool_picture import PoolPicture

KEY = "admin-key"


@pytest.fixture(autouse=True)
def no_surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.delenv("OCTAVO_ADMIN_KEY", raising=False)
    monkeypatch.setattr(admin_client, "TIMEOUT_S", 60.0)


def run(*arguments: str, **options: Any) -> Result:
    return CliRunner().invoke(main, ["blocks", *arguments], **options)


def request(id: int, *blocks: int, **fields: Any) -> dict[str, Any]:
    return {
        "id": id,
        "reply_id": f"cmpl-{id}",
        "request_id": f"name-{id}",
        "phase": "decode",
        "tenant": "acme",
        "class": "chat",
        "priority": 0,
        "prompt_tokens": 1234,
        "computed_tokens": 1250,
        "generated_tokens": 17,
        "preemptions": 0,
        "blocks": list(blocks),
        "host_blocks": [0 for _ in blocks],
        **fields,
    }


def owned(owners: int, *sequences: tuple[int, int]) -> dict[str, Any]:
    return {"state": "owned", "owners": owners, "sequences": [list(s) for s in sequences]}


def document(blocks: list[dict[str, Any]], *requests: dict[str, Any]) -> dict[str, Any]:
    states = [block["state"] for block in blocks]
    return {
        "total": len(blocks),
        "block_size": 16,
        "free": states.count("free"),
        "cached": states.count("cached"),
        "owned": states.count("owned"),
        "shared": sum(block.get("owners", 0) > 1 for block in blocks),
        "host": {"total": 0, "free": 0},
        "running": len(requests),
        "waiting": 3,
        "blocks": blocks,
        "requests": list(requests),
    }


TOLD = ("acme", "chat", "decode", "1,234", "17")
FREE, CACHED = {"state": "free"}, {"state": "cached"}
SMALL = document(
    [
        owned(1, (7, 0)),
        owned(2, (8, 0), (8, 1)),
        owned(1, (8, 1)),
        owned(1),
        owned(2),
        CACHED,
        FREE,
    ],
    request(7, 1),
    request(8, 1, 2),
    request(9),
)


def drawn(what: dict[str, Any], width: int = 80) -> list[str]:
    console = Console(width=width, highlight=False, force_terminal=False)
    with console.capture() as capture:
        console.print(PoolPicture(what), crop=False)
    return capture.get().splitlines()


# -------------------------------------------------------------------- the picture


def test_letters_are_requests_capitals_are_shared_and_the_rest_is_marked() -> None:
    lines = drawn(SMALL)
    assert lines[0] == "0  aBb??~."
    assert lines[-1] == ("7 blocks: 5 owned, 2 shared, 1 cached ~, 1 free .; 3 running, 3 waiting")


def test_the_legend_names_who_owns_blocks_and_nobody_else() -> None:
    legend = "\n".join(drawn(SMALL))
    (a,) = [line for line in legend.splitlines() if line.startswith("a ")]
    assert a.split() == ["a", "name-7", *TOLD, "1", "1"]
    (b,) = [line for line in legend.splitlines() if line.startswith("b ")]
    assert b.split() == ["b", "name-8", *TOLD, "2", "3"]
    assert "name-9" not in legend


def test_who_has_left_is_named_by_the_engines_number() -> None:
    gone = request(7, 1, request_id=None, reply_id=None)
    assert "request 7" in "\n".join(drawn(document([owned(1, (7, 0))], gone)))


def test_an_empty_pool_has_no_legend() -> None:
    assert drawn(document([FREE] * 5)) == [
        "0  .....",
        "",
        "5 blocks: 0 owned, 0 shared, 0 cached ~, 5 free .; 0 running, 3 waiting",
    ]


def test_host_memory_is_in_the_totals_where_there_is_any() -> None:
    what = {**document([FREE] * 5), "host": {"total": 64, "free": 52}}
    assert "5 free ., 12 of 64 on the host; " in drawn(what, 120)[-1]


def test_the_totals_are_one_line_in_a_pipe_however_long() -> None:
    what = {**document([FREE] * 5), "host": {"total": 64, "free": 52}}
    assert drawn(what, 40)[-1].startswith("5 blocks: ")
    assert drawn(what, 40)[-1].endswith(" 3 waiting")


@pytest.mark.parametrize("width", [20, 40, 80, 81, 200])
def test_the_grid_is_as_wide_as_the_console_and_every_block_is_in_it_once(width: int) -> None:
    lines = drawn(document([FREE] * 100 + [CACHED] * 60), width)
    grid = [line for line in lines[: lines.index("")] if line]
    rows = [line.split() for line in grid]
    assert "".join(row for _, row in rows) == "." * 100 + "~" * 60
    lengths = {len(row) for _, row in rows[:-1]}
    assert all(length % 8 == 0 for length in lengths)
    assert [int(place) for place, _ in rows] == [i * len(rows[0][1]) for i in range(len(rows))]
    assert max(map(len, grid)) <= width


def test_in_a_large_pool_a_character_stands_for_several_blocks() -> None:
    lines = drawn(document(([FREE] * 3 + [CACHED] * 5) * 1000))
    assert lines[0].startswith("each character stands for 5 blocks")
    grid = lines[2 : lines.index("", 2)]
    assert len(grid) <= 24
    assert sum(len(line.split()[1]) for line in grid) == 1600


def test_when_letters_run_out_the_others_are_counted() -> None:
    many = [request(i, 1) for i in range(30)]
    lines = drawn(document([owned(1, (i, 0)) for i in range(30)], *many))
    assert lines[0].split()[1] == "abcdefghijklmnopqrstuvwxyz????"
    assert ["?", "4", "more"] in [line.split() for line in lines]


def test_a_long_name_is_cut_and_the_numbers_are_not() -> None:
    lines = drawn(document([owned(1, (7, 0))], request(7, 1, request_id="x" * 128)), 70)
    (a,) = [line for line in lines if line.startswith("a ")]
    assert "xx…" in a
    assert a.split()[2:] == [*TOLD, "1", "1"]


# -------------------------------------------------------------------- a live server


async def test_a_served_pool_is_drawn_plainly_where_there_is_no_terminal() -> None:
    async with serving(admin_key=KEY) as house:
        await house.post(COMPLETIONS, {"prompt": "x" * 40, "max_tokens": 1})
        await house.idle()
        env = {"OCTAVO_ADMIN_KEY": KEY}
        with structlog.testing.capture_logs():  # else the server's lines are in the output, too
            result = await asyncio.to_thread(run, "--url", house.url + "/", env=env)
            shown = await asyncio.to_thread(run, "--url", house.url, "--key", KEY, "--json")
        assert result.exit_code == 0, result.output
        assert "\x1b" not in result.stdout
        assert result.stdout.count("~") == 3
        assert "64 blocks: 0 owned, 0 shared, 2 cached ~, 62 free ." in result.stdout
        assert json.loads(shown.stdout)["cached"] == 2


MISSING = "the admin key is missing; give it in OCTAVO_ADMIN_KEY, or with --key"


@pytest.mark.parametrize(
    ("key", "arguments", "says"),
    [
        (None, (), "there are no admin routes; a server has them once server.admin_key is set"),
        (KEY, (), MISSING),
        (KEY, ("--key", ""), MISSING),
        (KEY, ("--key", "another"), "this is not the server's admin key"),
    ],
)
async def test_a_closed_door_is_one_line_and_exit_code_1(key, arguments, says) -> None:
    async with serving(admin_key=key) as house:
        with structlog.testing.capture_logs():
            result = await asyncio.to_thread(run, "--url", house.url, *arguments)
        assert result.exit_code == 1
        assert (result.stdout, result.stderr) == ("", f"Error: {house.url}: {says}\n")


# -------------------------------------------------------------------- other servers


@contextmanager
def answering(
    *answers: tuple[int, bytes], seen: list[Any] | None = None, location: str = ""
) -> Iterator[str]:
    """A server that gives these answers, one after the other; the last one again and again.

    seen: where it puts the headers of each request.
    """
    left = list(answers)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if seen is not None:
                seen.append(self.headers)
            status, body = left.pop(0) if len(left) > 1 else left[0]
            self.send_response(status)
            if location:
                self.send_header("location", location)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Quiet."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def said(*answers: tuple[int, bytes], arguments: tuple[str, ...] = ()) -> tuple[int, str]:
    with answering(*answers) as url:
        result = run("--url", url, *arguments)
        return result.exit_code, result.stderr.replace(url, "URL")


def test_nobody_there_is_one_line_and_exit_code_1() -> None:
    with socket.socket() as taken:  # and nobody listens there
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        result = run("--url", url)
    assert result.exit_code == 1
    assert result.stderr == f"Error: {url} cannot be reached: connection refused\n"


def test_an_error_in_openais_shape_is_told_in_its_words() -> None:
    body = json.dumps({"error": {"message": "The engine is too busy."}}).encode()
    assert said((503, body)) == (1, "Error: URL: status 503: The engine is too busy.\n")
    assert said((503, b"<html>")) == (1, "Error: URL: status 503\n")


@pytest.mark.parametrize("body", [b"<html>", b"", b"[1]", b"\xff"])
def test_what_is_no_json_object_is_not_octavo(body: bytes) -> None:
    assert said((200, body)) == (1, "Error: URL does not answer as Octavo does\n")


@pytest.mark.parametrize("body", [b"{}", b'{"requests": [1]}', b'{"requests": [], "blocks": [{}]}'])
def test_json_that_is_about_something_else_is_one_line(body: bytes) -> None:
    assert said((200, body)) == (1, "Error: URL does not speak of blocks as Octavo does\n")


@contextmanager
def saying(raw: bytes) -> Iterator[str]:
    """A server that says these bytes to whoever comes, whatever it is asked, and hangs up."""

    def serve() -> None:
        connection, _ = listener.accept()
        with connection, suppress(ConnectionError):
            connection.recv(65536)
            connection.sendall(raw)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        thread.join()


@pytest.mark.parametrize(
    "raw",
    [
        b"SSH-2.0-OpenSSH_9.0\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n{}",
        b"HTTP/1.1 200 OK\r\na: " + b"x" * 70_000 + b"\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\n\r\n" + b"[" * 200_000,
        b"HTTP/1.1 200 OK\r\n\r\n" + b'{"a": "' + b"x" * 5000 + b'"}',
    ],
    ids=["ssh", "cut off", "bad chunk", "long header", "deep", "endless"],
)
def test_what_is_hardly_http_is_not_octavo(raw: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_client, "MOST_BYTES", 4096)
    with saying(raw) as url:
        result = run("--url", url)
    expected = f"Error: {url} does not answer as Octavo does\n"
    assert (result.exit_code, result.stderr) == (1, expected)


def test_an_error_that_breaks_off_is_told_by_its_status() -> None:
    for body in (b"content-length: 9\r\n\r\n{", b"\r\n" + b"[" * 200_000):
        with saying(b"HTTP/1.1 500 x\r\n" + body) as url:
            assert run("--url", url).stderr == f"Error: {url}: status 500\n"


def test_a_redirect_does_not_carry_the_key_away() -> None:
    first: list[Any] = []
    second: list[Any] = []
    body = json.dumps(SMALL).encode()
    with (
        answering((200, body), seen=second) as elsewhere,
        answering((302, b""), seen=first, location=elsewhere) as url,
    ):
        assert run("--url", url, "--key", KEY).exit_code == 0
    assert [headers["authorization"] for headers in first] == [f"Bearer {KEY}"]
    assert [headers["authorization"] for headers in second] == [None]


@pytest.mark.parametrize("arguments", [("--json",), ()])
def test_watching_goes_on_until_the_server_goes(
    monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    monkeypatch.setattr(command, "INTERVAL_S", 0.0)
    body = json.dumps(SMALL).encode()
    with answering((200, body), (200, body), (503, b"")) as url:
        result = run("--url", url, "--watch", *arguments)
    assert result.exit_code == 1
    assert result.stderr == f"Error: {url}: status 503\n"
    assert result.stdout.count('"total":7' if arguments else "7 blocks: ") == 2


@pytest.mark.parametrize(
    "arguments",
    [
        ("--url", "localhost:8000"),
        ("--url", "ftp://localhost"),
        ("--url", "http://"),
        ("--url", "http://localhost:port"),
        ("--key", "a\nb"),
        ("--key", "é"),
        ("--nothing",),
        ("something",),
    ],
)
def test_a_command_line_that_cannot_be_used_is_exit_code_2(arguments: tuple[str, ...]) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert "Traceback" not in result.output


def test_help_shows_an_example() -> None:
    assert "octavo blocks --url http://gpu-7:8000 --watch" in run("--help").output
