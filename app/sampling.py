"""From the fields of a request to its sampling record, as far as model and limits allow it."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from app.answers import Answers
from app.errors import invalid, sentence
from app.prompts import check_ids
from app.schemas.sampling import Generate
from app.service import Service
from engine.controls import RowControls

GREEDY_BELOW = 1e-5
"""Temperatures under this are greedy: dividing by them overflows and changes nothing else."""


def check(service: Service, request: Generate) -> None:
    """What depends on the model that is served and on the server's limits. Raises ApiError."""
    service.require_model(request.model)
    limits = service.limits
    stops = request.stop or ()
    if len(stops) > limits.max_stop_strings:
        raise invalid(f"At most {limits.max_stop_strings} stop strings are allowed.", "stop")
    if any(len(stop) > limits.max_stop_chars for stop in stops):
        raise invalid(f"A stop string has at most {limits.max_stop_chars} characters.", "stop")
    words = request.bad_words or ()
    if any(len(word) > limits.max_stop_chars for word in words):
        raise invalid(f"A bad word has at most {limits.max_stop_chars} characters.", "bad_words")
    for param, entries, most in (
        ("logit_bias", request.bias, limits.max_logit_bias),
        ("bad_words", words, limits.max_bad_words),
        ("allowed_token_ids", request.allowed_token_ids or (), limits.max_allowed_token_ids),
    ):
        if len(entries) > most:
            raise invalid(f"At most {most} entries are allowed.", param)
    check_ids(service, tuple(request.bias), "logit_bias")
    check_ids(service, request.stop_token_ids or (), "stop_token_ids")
    check_ids(service, request.allowed_token_ids or (), "allowed_token_ids")


def row_controls(
    service: Service, request: Generate, answers: Answers, *, scored: int | None = None
) -> RowControls:
    """The sampling record of a checked request.

    scored: alternatives that the log-probabilities of its prompt have; None for none at all.

    A seed that is not given is drawn, so that a request is reproducible from its submission.
    Raises ApiError (400) where it may leave no token to choose.
    """
    temperature = 1.0 if request.temperature is None else request.temperature
    if answers.beams is not None:
        temperature = 0.0  # nothing is drawn
    logprobs = request.alternatives
    if answers.ranked and logprobs is None:
        logprobs = 0  # those of the tokens themselves
    allowed = request.allowed_token_ids
    controls = RowControls(
        temperature=0.0 if temperature < GREEDY_BELOW else temperature,
        top_k=_top_k(service, request),
        top_p=request.top_p or 1.0,
        min_p=request.min_p or 0.0,
        seed=secrets.randbits(63) if request.seed is None else request.seed,
        logit_bias=request.bias,
        presence_penalty=request.presence_penalty or 0.0,
        frequency_penalty=request.frequency_penalty or 0.0,
        repetition_penalty=request.repetition_penalty or 1.0,
        allowed_ids=None if allowed is None else frozenset(allowed),
        bad_words=_bad_words(service, request.bad_words or ()),
        min_tokens=request.min_tokens or 0,
        ignore_eos=bool(request.ignore_eos),
        eos_ids=service.tokenizer.eos_ids,
        stop_ids=frozenset(request.stop_token_ids or ()),
        logprobs=logprobs,
        prompt_logprobs=scored,
    )
    _check_possible(service, controls)
    return controls


def _top_k(service: Service, request: Generate) -> int:
    """0 for all. top_p 0 keeps the best token only, which is what it says taken at its word."""
    if request.top_p == 0:
        return 1
    top_k = max(request.top_k or 0, 0)
    return top_k if top_k < service.tokenizer.vocab_size else 0


def _bad_words(service: Service, words: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    """The token sequences of words, at the start of a text and behind a space. Raises ApiError."""
    try:
        found = [
            tuple(service.tokenizer.encode(text, continues=True))
            for word in words
            for text in (word, f" {word}")
        ]
    except ValueError as error:
        raise invalid(sentence(str(error)), "bad_words") from None
    return tuple(dict.fromkeys(found))


def _check_possible(service: Service, controls: RowControls) -> None:
    """Raises ApiError (400) if there may come a point at which no token is left to choose."""
    forbidden = {word[-1] for word in controls.bad_words}
    if controls.min_tokens:
        forbidden |= controls.eos_ids | controls.stop_ids
    allowed = controls.allowed_ids
    left = service.tokenizer.vocab_size if allowed is None else len(allowed)
    taken = len(forbidden) if allowed is None else len(forbidden & allowed)
    if taken >= left:
        param = "allowed_token_ids" if allowed is not None else "stop_token_ids"
        message = "Together with bad_words, stop_token_ids and min_tokens this leaves no token."
        raise invalid(message, param)
