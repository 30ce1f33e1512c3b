"""The response object, over raw ASGI: statuses, races, frames, and that leaving is the abort."""

import asyncio
import contextlib
import json
from concurrent.futures import ThreadPoolExecutor

import pytest
from starlette.requests import ClientDisconnect
from support.serving import chunks, events

from app.bridge import DRAINING, NotReady
from app.config.schema import Config, LimitsConfig, SseConfig
from app.errors import ApiError
from app.generation import prepare_chat
from app.metrics import Metrics
from app.record import Record
from app.replies.tools import ToolsReply
from app.room import Overloaded
from app.service import Service
from app.stream import GenerationResponse
from app.structured.grammars import Grammars
from app.tenancy import Caller, Tenancy
from app.text.template import ChatTemplate
from app.text.tokenizer import ByteTokenizer
from app.tools.calls import CallReader
from engine.clock import VirtualClock
from engine.outputs import Failure, FailureKind, Finish, FinishReason, Output, Timing

FAULT = Failure(FailureKind.ENGINE_FAULT, "the engine failed")
SHED = Failure(FailureKind.SHED, "no room", 3.0)


def token(letter: str, finish: FinishReason | None = None, **fields) -> Output:
    end = None if finish is None else Finish(finish)
    return Output(1, 0, 1.0, tokens=tuple(letter.encode()), finish=end, **fields)


def failed(failure: Failure, **fields) -> Output:
    return Output(1, 0, 1.0, finish=Finish(FinishReason.ERROR, failure=failure), **fields)


class FakeBridge:
    """Plays deliveries back; once they are used up the stream is silent for ever."""

    def __init__(self, *deliveries, refusal=None) -> None:
        self._deliveries = list(deliveries)
        self._refusal = refusal
        self.log = []
        self.silent = asyncio.Event()
        self.speak = asyncio.Event()

    def next_id(self) -> int:
        return 1

    @contextlib.contextmanager
    def open(self, *submissions, on_cut, **of):
        self.cut = on_cut
        if self._refusal is not None:
            raise self._refusal
        self.log.append("opened")
        try:
            yield self
        finally:
            self.log.append("left")

    async def next(self, push=None):
        if not self._deliveries:
            self.silent.set()
            await self.speak.wait()
            self.speak.clear()
            return await self.next()
        return self._deliveries.pop(0)

    def finish_at(self, request, index, tokens):
        self.log.append(("finish_at", request, index, tokens))

    def deliver(self, *outputs):
        self._deliveries.append(list(outputs))
        self.speak.set()


class Client:
    """The ASGI side of a client that reads everything, and may leave."""

    def __init__(self) -> None:
        self.gone = asyncio.Event()
        self.messages = []
        self.body_sent = asyncio.Event()

    async def receive(self):
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message):
        self.messages.append(message)
        if message["type"] == "http.response.body":
            self.body_sent.set()

    @property
    def status(self):
        return self.messages[0]["status"] if self.messages else None

    @property
    def body(self):
        return b"".join(message.get("body", b"") for message in self.messages)


class Call:
    """One request to a fake bridge, running in the background."""

    def __init__(self, bridge: FakeBridge, sse=None, **fields) -> None:
        tokenizer = ByteTokenizer()
        self.metrics = Metrics()
        service = Service(
            model_id="m",
            created=0,
            max_model_len=128,
            tokenizer=tokenizer,
            template=ChatTemplate.for_tokenizer(tokenizer),
            bridge=bridge,
            clock=VirtualClock(),
            executor=ThreadPoolExecutor(1),
            limits=LimitsConfig(),
            sse=SseConfig(**(sse or {})),
            metrics=self.metrics,
            version="0",
            max_body_bytes=1000,
            tenancy=Tenancy(Config()),
            policies=None,
            grammars=Grammars(Config().structured, tokenizer),
        )
        body = {"messages": [{"role": "user", "content": "x"}], **fields}
        generation = prepare_chat(service, json.dumps(body).encode(), 0.0, Caller())
        self.bridge = bridge
        self.record = Record("r")
        self.client = Client()
        response = GenerationResponse(service, generation, self.record)
        scope = {"type": "http", "method": "POST"}
        self.task = asyncio.ensure_future(response(scope, self.client.receive, self.client.send))

    async def done(self) -> "Call":
        await self.task
        return self

    @property
    def text(self) -> str:
        return "".join(c["choices"][0]["delta"]["content"] for c in chunks(self.client.body))


STREAM = [{"stream": True}, {"stream": False}]


@pytest.mark.parametrize("mode", STREAM)
@pytest.mark.parametrize("refusal", [Overloaded("full", 2.0), NotReady(DRAINING)])
async def test_a_refusal_leaves_before_anything_is_sent(mode, refusal):
    call = Call(FakeBridge(refusal=refusal), **mode)
    with pytest.raises(type(refusal)) as caught:
        await call.task
    assert caught.value is refusal
    assert call.client.messages == []


@pytest.mark.parametrize("mode", STREAM)
@pytest.mark.parametrize(("failure", "status"), [(SHED, 429), (FAULT, 500)])
async def test_a_verdict_instead_of_a_first_token_has_a_status(mode, failure, status):
    call = Call(FakeBridge([failed(failure)]), **mode)
    with pytest.raises(ApiError) as caught:
        await call.task
    assert caught.value.status == status
    assert call.client.messages == []
    assert call.bridge.log == ["opened", "left"]


@pytest.mark.parametrize("mode", STREAM)
async def test_a_client_that_leaves_in_the_queue_ends_the_request(mode):
    call = Call(FakeBridge(), **mode)
    await call.bridge.silent.wait()
    call.client.gone.set()
    with pytest.raises(ClientDisconnect):
        await call.task
    assert call.bridge.log == ["opened", "left"]
    assert call.client.messages == []
    assert call.metrics.followed == 0


async def test_a_client_that_leaves_an_unstreamed_reply_halfway_ends_the_request():
    call = Call(FakeBridge([token("a")]))
    await call.bridge.silent.wait()
    call.client.gone.set()
    with pytest.raises(ClientDisconnect):
        await call.task
    assert call.bridge.log == ["opened", "left"]


async def test_a_client_that_leaves_midstream_ends_the_request():
    call = Call(FakeBridge([token("a")]), stream=True)
    await call.client.body_sent.wait()
    call.client.gone.set()
    await call.task
    assert call.bridge.log == ["opened", "left"]
    assert call.record.client_disconnected
    assert call.record.completion_tokens == 1
    assert call.metrics.followed == 0


@pytest.mark.parametrize("mode", STREAM)
async def test_a_cancelled_reply_ends_the_request(mode):
    call = Call(FakeBridge([token("a")]), **mode)
    await call.bridge.silent.wait()
    call.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call.task
    assert call.bridge.log == ["opened", "left"]


async def test_nothing_is_sent_before_the_first_token():
    call = Call(FakeBridge(), stream=True)
    await call.bridge.silent.wait()
    assert call.client.messages == []
    call.bridge.deliver(token("a", FinishReason.LENGTH))
    await call.done()
    assert call.client.status == 200
    assert call.text == "a"


async def test_a_failure_midstream_is_an_error_event_then_done_without_finish_reason():
    call = await Call(FakeBridge([token("a")], [token("b"), failed(FAULT)]), stream=True).done()
    first, second, error, done = events(call.client.body)
    assert b'"content":"a"' in first
    assert b'"content":"b"' in second
    kind, data = error.split(b"\n")
    assert kind == b"event: error"
    assert json.loads(data.removeprefix(b"data: "))["error"] == {
        "message": "The engine failed.",
        "type": "server_error",
        "param": None,
        "code": "internal_error",
    }
    assert done == b"data: [DONE]"
    assert b'"finish_reason":null' in second
    assert call.record.error == "internal_error"
    assert not call.record.client_disconnected
    assert call.bridge.log == ["opened", "left"]


async def test_tokens_that_come_with_the_failure_make_it_a_stream():
    call = await Call(FakeBridge([token("a"), failed(FAULT)]), stream=True).done()
    assert call.client.status == 200
    assert len(events(call.client.body)) == 3


async def test_a_failure_after_some_tokens_of_an_unstreamed_reply_has_a_status():
    call = Call(FakeBridge([token("a")], [failed(FAULT)]))
    with pytest.raises(ApiError) as caught:
        await call.task
    assert caught.value.status == 500
    assert call.client.messages == []


async def test_sixteen_waiting_tokens_keep_their_frames():
    waiting = [token(letter) for letter in "abcdefghijklmno"] + [token("p", FinishReason.LENGTH)]
    call = await Call(FakeBridge(waiting), stream=True).done()
    assert len(chunks(call.client.body)) == 16
    assert call.text == "abcdefghijklmnop"


async def test_more_than_sixteen_waiting_tokens_share_a_frame():
    waiting = [token(letter) for letter in "abcdefghijklmnop"] + [token("q", FinishReason.LENGTH)]
    call = await Call(FakeBridge(waiting), stream=True).done()
    (chunk,) = chunks(call.client.body)
    assert chunk["choices"][0]["delta"] == {"role": "assistant", "content": "abcdefghijklmnopq"}
    assert chunk["choices"][0]["finish_reason"] == "length"
    assert call.record.completion_tokens == 17


@pytest.mark.parametrize("mode", STREAM)
async def test_a_stop_string_ends_the_sequence_and_tells_the_engine(mode):
    deliveries = [[token("a"), token("b")], [token("c"), token("d")]]
    call = await Call(FakeBridge(*deliveries), stop=["bc"], **mode).done()
    assert ("finish_at", 1, 0, 3) in call.bridge.log
    assert call.bridge.log[-1] == "left"
    if mode["stream"]:
        assert call.text == "a"
        choice = chunks(call.client.body)[-1]["choices"][0]
    else:
        choice = json.loads(call.client.body)["choices"][0]
        assert choice["message"]["content"] == "a"
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", "bc")
    assert call.record.completion_tokens == 3


async def test_a_token_that_is_held_back_still_has_its_chunk():
    deliveries = [[token("a")], [token("b")], [token("x", FinishReason.LENGTH)]]
    call = await Call(FakeBridge(*deliveries), stop=["abc"], stream=True).done()
    contents = [c["choices"][0]["delta"]["content"] for c in chunks(call.client.body)]
    assert contents == ["", "", "abx"]


async def test_usage_counts_cached_tokens():
    options = {"stream": True, "stream_options": {"include_usage": True}}
    call = await Call(FakeBridge([token("a", FinishReason.LENGTH, cached=5)]), **options).done()
    usage = chunks(call.client.body)[-1]["usage"]
    assert usage["prompt_tokens_details"] == {"cached_tokens": 5}


async def test_the_log_line_knows_queue_time_and_ttft():
    timing = Timing(arrival=0.25, admitted=0.5)
    call = await Call(FakeBridge([token("a", FinishReason.LENGTH, timing=timing)])).done()
    assert (call.record.queue_s, call.record.ttft_s) == (0.25, 0.75)
    assert call.record.finish_reason == "length"


@pytest.mark.parametrize(
    ("mode", "keepalive"), [("comment", b": keepalive\n\n"), ("chunk", b'"delta":{}')]
)
async def test_keepalives_fill_silence_and_nothing_else(mode, keepalive):
    sse = {"keepalive_interval_s": 0.01, "keepalive_mode": mode}
    call = Call(FakeBridge(), sse=sse, stream=True)
    await call.client.body_sent.wait()
    assert keepalive in call.client.body
    assert b'"content"' not in call.client.body
    call.bridge.deliver(token("a"), token("b", FinishReason.LENGTH))
    await call.done()
    audible = call.client.body[call.client.body.index(b'"role"') :]
    assert keepalive not in audible
    assert audible.endswith(b"data: [DONE]\n\n")


async def test_a_verdict_after_a_keepalive_is_an_error_event():
    call = Call(FakeBridge(), sse={"keepalive_interval_s": 0.01}, stream=True)
    await call.client.body_sent.wait()
    call.bridge.deliver(failed(SHED))
    await call.done()
    assert call.client.status == 200
    *silence, error, done = events(call.client.body)
    assert set(silence) == {b": keepalive"}
    assert error.startswith(b"event: error\ndata: ")
    assert done == b"data: [DONE]"


def test_what_a_piece_adds_to_a_call_is_told_once_of_each_call() -> None:
    """Whatever comes at once: clients put together what chunks add, and not what one adds twice."""
    reader = CallReader()
    call = '<tool_call>\n{"name": "Person", "arguments": {"age": 12}}\n</tool_call>\n'
    said = reader.feed(call + call.replace("Person", "Dog"))
    assert len(said.calls) > 2
    added = ToolsReply._added(None, said.calls)["tool_calls"]  # type: ignore[arg-type]
    assert [each["index"] for each in added] == [0, 1]
    assert [each["function"] for each in added] == [
        {"name": "Person", "arguments": '{"age": 12}'},
        {"name": "Dog", "arguments": '{"age": 12}'},
    ]
    assert all(each["id"] for each in added)
