"""Usage tells what the prefix cache saved, and `cache_salt` keeps tenants apart."""

from support.serving import COMPLETIONS, serving

PROMPT = "All work and no play makes Jack a dull boy. " * 2


async def test_a_repeated_prompt_is_reported_as_cached_and_another_salt_is_not() -> None:
    async with serving() as house:
        seen = []
        for salt in (None, None, "a", "a", "b"):
            body = {"prompt": PROMPT, "max_tokens": 2, "cache_salt": salt}
            usage = (await house.post(COMPLETIONS, body)).json()["usage"]
            assert usage["prompt_tokens"] == len(PROMPT)
            seen.append(usage["prompt_tokens_details"]["cached_tokens"])
        saved = (len(PROMPT) - 1) // 16 * 16
        assert seen == [0, saved, 0, saved, 0]
        await house.idle()


async def test_a_salt_that_is_no_salt_is_refused() -> None:
    async with serving() as house:
        for salt in ("", "a@b", "a/b", "a\\b", "a\x00b", "x" * 129, 7):
            reply = await house.post(COMPLETIONS, {"prompt": "x", "cache_salt": salt})
            assert reply.status_code == 400, salt
            assert reply.json()["error"]["param"] == "cache_salt"
