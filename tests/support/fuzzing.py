"""schemathesis against a served house: what it may answer, whatever it is sent.

schemathesis imports this module for its checks: SCHEMATHESIS_HOOKS=support.fuzzing.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import schemathesis

TESTS = Path(__file__).parents[1]

NOT_CHECKED = (
    "positive_data_acceptance",  # a schema knows neither the vocabulary nor the context
    "negative_data_rejection",  # fields that nobody reads may be anything
    "not_a_server_error",  # the one below is more exact
)


IMPLAUSIBLE = frozenset(
    {"model", "chat_template", "length_penalty", "early_stopping", "logit_bias", "best_of"}
)
"""Fields that are hardly ever right when they are made up."""


@schemathesis.check
def server_errors_are_meant(ctx, response, case) -> None:  # type: ignore[no-untyped-def]
    """No 500, 502 or 504; 503 only for somebody who is told when to come again, or not to."""
    if response.status_code < 500:
        return
    retry = response.headers.get("retry-after"), response.headers.get("x-should-retry")
    meant = response.status_code == 503 and (retry[0] or retry[1] == ["false"])
    assert meant, f"{response.status_code}, retry-after {retry[0]}: {response.text[:500]}"


@schemathesis.check
def errors_have_four_keys(ctx, response, case) -> None:  # type: ignore[no-untyped-def]
    """Whoever reads errors finds the same members in each, and `code` is a string or null."""
    if response.status_code >= 400 and case.method != "HEAD":
        error = response.json()["error"]
        assert error.keys() == {"message", "type", "param", "code"}, error
        assert error["code"] is None or isinstance(error["code"], str), error


@schemathesis.hook
def map_body(ctx, body):  # type: ignore[no-untyped-def]
    """Most of what fits the schema is refused for the same few reasons; here, four of five times,
    not, so that the engine gets to see some of it."""
    if not isinstance(body, dict) or len(repr(body)) % 5 == 0:
        return body
    bounds = {"max_tokens": 60, "max_completion_tokens": 60, "max_output_tokens": 60, "n": 4}
    bounds["min_tokens"] = 1
    plausible = {key: value for key, value in body.items() if key not in IMPLAUSIBLE}
    for name, most in bounds.items():
        if type(plausible.get(name)) is int:
            plausible[name] = plausible[name] % most + 1 if plausible[name] > 0 else 1
    for name in ("stop_token_ids", "allowed_token_ids", "tokens"):
        if isinstance(plausible.get(name), list):
            plausible[name] = [i % 257 if type(i) is int and i > 0 else i for i in plausible[name]]
    if "prompt" in plausible and "messages" in plausible:
        del plausible["prompt"]
    return plausible


async def fuzz(url: str, seconds: float, folder: Path, *options: str) -> tuple[int, str]:
    """Fuzz the server at `url` for so long, keeping notes in `folder`.

    Gives the exit status, 0 if nothing was found, and what was said.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "schemathesis.cli",
        "fuzz",
        f"{url}/openapi.json",
        f"--max-time={seconds:g}",
        f"--exclude-checks={','.join(NOT_CHECKED)}",
        "--no-color",
        "--continue-on-failure",
        "--suppress-health-check=all",
        "--request-timeout=60",
        "--generation-codec=utf-8",  # a lone surrogate is no JSON, and there nearly always is one
        "--generation-database=none",
        *options,
        cwd=folder,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={
            **os.environ,
            "SCHEMATHESIS_HOOKS": "support.fuzzing",
            "PYTHONPATH": os.pathsep.join([str(TESTS), str(TESTS.parent)]),
        },
    )
    try:
        said, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode is not None
    return process.returncode, said.decode(errors="replace")
