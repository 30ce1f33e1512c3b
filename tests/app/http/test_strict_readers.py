"""The readers that clients in the field are built on, each with its rules and its weaknesses."""

import json

import pytest
from support.serving import CHAT, HELLO, saying, serving

TEXT = "Grüße, 🦙!"


class SplitReader:
    """Strips each read, splits the buffer on blank lines only, keeps what is no message yet.

    A message may be complete without its blank line, which stripping has eaten (the benchmark
    client of vLLM reads like this).
    """

    def __init__(self) -> None:
        self._buffer = ""
        self._half = b""
        self.messages = []

    def feed(self, read: bytes) -> None:
        read = read.strip()
        if not read:
            return
        self._half += read
        try:
            self._buffer += self._half.decode()
        except UnicodeDecodeError:
            return
        self._half = b""
        while "\n\n" in self._buffer:
            message, self._buffer = self._buffer.split("\n\n", 1)
            self._add(message)
        if self._is_whole(self._buffer):
            self._add(self._buffer)
            self._buffer = ""

    def _add(self, message: str) -> None:
        if message := message.strip():
            self.messages.append(message)

    def _is_whole(self, text: str) -> bool:
        if not text.startswith("data: "):
            return False
        content = text.removeprefix("data: ").strip()
        if content == "[DONE]":
            return True
        try:
            json.loads(content)
        except ValueError:
            return False
        return True


async def stream(**fields) -> bytes:
    async with serving(script=saying(TEXT)) as house:
        reply = await house.post(CHAT, {"messages": HELLO, "stream": True, **fields})
        return reply.content


def text_of(messages) -> str:
    *data, done = messages
    assert done == "data: [DONE]"
    loaded = [json.loads(message.removeprefix("data: ")) for message in data]
    return "".join(chunk["choices"][0]["delta"]["content"] for chunk in loaded)


async def test_a_reader_that_splits_on_blank_lines_reads_everything_at_once():
    reader = SplitReader()
    reader.feed(await stream())
    assert text_of(reader.messages) == TEXT


async def test_a_reader_that_splits_on_blank_lines_reads_every_fragmentation():
    raw = await stream()
    for cut in range(1, len(raw)):
        if raw[cut : cut + 1] == b" " or raw[cut - 1 : cut] == b" ":
            continue  # stripping eats a space at an edge: that client's own weakness
        reader = SplitReader()
        reader.feed(raw[:cut])
        reader.feed(raw[cut:])
        assert text_of(reader.messages) == TEXT, cut


async def test_a_reader_that_splits_on_blank_lines_reads_one_message_a_read():
    reader = SplitReader()
    for event in (await stream()).split(b"\n\n"):
        reader.feed(event + b"\n\n")
    assert text_of(reader.messages) == TEXT


@pytest.mark.parametrize("width", [1, 7, 1 << 20])
async def test_a_reader_that_loads_every_line_that_is_not_empty(width):
    raw = await stream()
    buffer, loaded = b"", []
    for start in range(0, len(raw), width):
        buffer += raw[start : start + width]
        *lines, buffer = buffer.split(b"\n")
        for line in filter(None, lines):
            data = line.removeprefix(b"data: ")
            if data != b"[DONE]":
                loaded.append(json.loads(data))
    assert buffer == b""
    assert "".join(chunk["choices"][0]["delta"]["content"] for chunk in loaded) == TEXT


async def test_a_reader_that_takes_the_first_choice_of_every_chunk():
    for line in (await stream()).decode().split("\n"):
        if line.startswith("data: {"):
            assert json.loads(line[6:])["choices"][0]["index"] == 0


async def test_inter_token_samples_are_one_fewer_than_tokens():
    raw = await stream(max_tokens=5, stream_options={"include_usage": True})
    loaded = [json.loads(e[6:]) for e in raw.split(b"\n\n") if e.startswith(b"data: {")]
    samples = sum(1 for chunk in loaded if chunk["choices"]) - 1
    assert samples == loaded[-1]["usage"]["completion_tokens"] - 1
