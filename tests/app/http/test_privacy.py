"""No prompt, answer or key in logs at any level, in metrics, or in what is said of errors."""

from __future__ import annotations

import json
import logging
from io import StringIO

import pytest
import structlog
from support.serving import CHAT, COMPLETIONS, saying, serving

from app.logs import configure_logs

TEXT, KEY, ADMIN, WRONG = "Zebra-prompt", "zebra-key", "zebra-admin", "zebra-wrong"
ANSWER = "Zebra-answer"
CONFIG = {"tenants": {"acme": {"keys": [KEY]}}, "identity": {"require_key": True}}
USER = [{"role": "user", "content": TEXT}]
BAD = (
    (CHAT, {"messages": TEXT}),
    (CHAT, {"messages": [{"role": TEXT, "content": TEXT}]}),
    (CHAT, {"messages": [{"role": "user", "content": {"text": TEXT}}]}),
    (CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": TEXT}]}]}),
    (CHAT, {"messages": USER, "temperature": 99}),
    (CHAT, {"messages": USER, "chat_template": TEXT}),
    (CHAT, {"messages": USER, "max_tokens": 100_000}),
    (CHAT, {"messages": USER, "response_format": {"type": "json_schema", "of": TEXT}}),
    (CHAT, {"messages": USER, "guided_json": {"not": {"const": TEXT}}}),
    (CHAT, {"messages": USER, "guided_regex": TEXT, "bad_words": [TEXT]}),
    (COMPLETIONS, {"prompt": {"text": TEXT}}),
    (COMPLETIONS, {"prompt": [TEXT, 1]}),
    (COMPLETIONS, {"prompt": TEXT * 1000}),
    (COMPLETIONS, {"prompt": TEXT, "suffix": TEXT}),
    ("/v1/responses", {"input": {"text": TEXT}}),
    ("/tokenize", {"prompt": {"text": TEXT}}),
    ("/detokenize", {"tokens": TEXT}),
)


@pytest.fixture
def written():
    """What the process logs at debug level, in the format that it is served with."""
    root, before = logging.getLogger(), structlog.get_config()
    handlers, level = list(root.handlers), root.level
    stream = StringIO()
    configure_logs("debug", "json", stream)
    yield stream
    structlog.configure(**before)
    root.handlers[:] = handlers
    root.setLevel(level)


def said_by_client(line: str) -> bool:
    """The test's own HTTP client logs its URLs."""
    return json.loads(line)["logger"].startswith(("httpx2", "httpcore2"))


def key(text: str) -> dict[str, str]:
    return {"authorization": f"Bearer {text}"}


async def test_what_was_said_and_who_may_say_it_is_told_nowhere(written, monkeypatch) -> None:
    async with serving(config=CONFIG, admin_key=ADMIN, script=saying(ANSWER)) as house:
        told = []

        async def post(path, body, status, given=KEY):
            reply = await house.post(path, body, headers=key(given))
            assert reply.status_code in status, reply.text
            told.append(reply.text if reply.status_code >= 400 else "")

        for stream in (False, True):
            await post(CHAT, {"messages": USER, "stream": stream}, {200})
            await post(COMPLETIONS, {"prompt": TEXT, "stream": stream, "echo": True}, {200})
        await post("/v1/responses", {"input": TEXT}, {200})
        await post("/tokenize", {"prompt": TEXT}, {200})
        for path, body in BAD:
            await post(path, body, {400})
        await post(CHAT, f'{{"messages": {TEXT}'.encode(), {400})
        await post(CHAT, {"messages": USER}, {401}, WRONG)
        await post("/admin/policy", {"policy": "fcfs"}, {401}, KEY)
        await post("/admin/policy", {"policy": "none"}, {400}, ADMIN)
        seen = await house.client.get("/admin/requests", headers=key(ADMIN))
        lost = await house.client.get(f"/nothing?key={KEY}", headers=key(KEY))
        assert (seen.status_code, lost.status_code) == (200, 404)
        metrics = await house.client.get("/metrics", headers=key(KEY))
        assert "octavo_http_requests_total" in metrics.text

        def broken(*arguments: object) -> None:
            content = TEXT
            raise KeyError(len(content))

        monkeypatch.setattr(house.service.bridge, "next_id", broken)
        await post(COMPLETIONS, {"prompt": TEXT}, {500})
        told += [seen.text, lost.text, metrics.text]
        monkeypatch.undo()
        await house.idle()
    logs = "".join(line for line in written.getvalue().splitlines(True) if not said_by_client(line))
    assert '"level":"debug"' in logs
    assert "KeyError" in logs
    for place in (*told, *logs.splitlines()):
        assert "zebra" not in place.lower(), place
