"""A checked request, ready to be opened: everything a reply needs, computed once."""

from __future__ import annotations

import secrets
import time
import uuid
from dataclasses import dataclass

from app.answers import Answers, answers_of
from app.chunks import Identity
from app.dialects import CHAT, COMPLETION, Dialect
from app.errors import invalid
from app.prompts import chat_tokens, check_ids, completion_tokens, fit
from app.schemas.chat import ChatRequest
from app.schemas.completion import CompletionRequest
from app.schemas.parsing import parse
from app.schemas.sampling import Generate
from app.service import Service
from app.tenancy import Caller, Tenant
from engine.controls import RowControls
from engine.inbox import Submission
from engine.prefix import block_keys, salt_of

COMPLETION_DEFAULT = 16
"""max_tokens of /v1/completions where none is given; OpenAI's number."""

GREEDY_BELOW = 1e-5
"""Temperatures under this are greedy: dividing by them overflows and changes nothing else."""


@dataclass(frozen=True, slots=True)
class Generation:
    """What to submit, and how to speak about what comes back.

    answers: how many of the sequences become choices, and which. tenant: who sent it.
    """

    answers: Answers
    tenant: Tenant
    submission: Submission
    identity: Identity
    dialect: Dialect
    stops: tuple[str, ...]
    stream: bool
    usage: bool
    logprobs: bool


def prepare_chat(service: Service, body: bytes, arrival: float, caller: Caller) -> Generation:
    """Read a chat request that `caller` sent at engine time `arrival`.

    Raises ApiError (400, 404); may run on any thread.
    """
    request = parse(ChatRequest, body, strict_fields=service.strict_fields)
    _check(service, request)
    prompt = chat_tokens(service, request.messages)
    max_tokens = fit(service, prompt, "messages", request.token_limit, None)
    return _generation(service, request, CHAT, prompt, max_tokens, arrival, caller)


def prepare_completion(service: Service, body: bytes, arrival: float, caller: Caller) -> Generation:
    """Read a completion request that `caller` sent at engine time `arrival`.

    Raises ApiError (400, 404); may run on any thread.
    """
    request = parse(CompletionRequest, body, strict_fields=service.strict_fields)
    _check(service, request)
    prompt = completion_tokens(service, request.prompt)
    max_tokens = fit(service, prompt, "prompt", request.token_limit, COMPLETION_DEFAULT)
    return _generation(service, request, COMPLETION, prompt, max_tokens, arrival, caller)


def row_controls(service: Service, request: Generate, answers: Answers) -> RowControls:
    """The sampling record of a checked request.

    A seed that is not given is drawn here, so that a request is reproducible from its submission.
    """
    temperature = 1.0 if request.temperature is None else request.temperature
    if answers.beams is not None:
        temperature = 0.0  # nothing is drawn
    logprobs = request.alternatives
    if answers.ranked and logprobs is None:
        logprobs = 0  # those of the tokens themselves
    return RowControls(
        temperature=0.0 if temperature < GREEDY_BELOW else temperature,
        top_k=_top_k(service, request),
        top_p=request.top_p or 1.0,
        min_p=request.min_p or 0.0,
        seed=secrets.randbits(63) if request.seed is None else request.seed,
        logit_bias=request.bias,
        presence_penalty=request.presence_penalty or 0.0,
        frequency_penalty=request.frequency_penalty or 0.0,
        repetition_penalty=request.repetition_penalty or 1.0,
        min_tokens=request.min_tokens or 0,
        ignore_eos=bool(request.ignore_eos),
        eos_ids=service.tokenizer.eos_ids,
        stop_ids=frozenset(request.stop_token_ids or ()),
        logprobs=logprobs,
    )


def _top_k(service: Service, request: Generate) -> int:
    """0 for all. top_p 0 keeps the best token only, which is what it says taken at its word."""
    if request.top_p == 0:
        return 1
    top_k = max(request.top_k or 0, 0)
    return top_k if top_k < service.tokenizer.vocab_size else 0


def _check(service: Service, request: Generate) -> None:
    """What depends on the model that is served and on the server's limits."""
    service.require_model(request.model)
    limits = service.limits
    stops = request.stop or ()
    if len(stops) > limits.max_stop_strings:
        raise invalid(f"At most {limits.max_stop_strings} stop strings are allowed.", "stop")
    if any(len(stop) > limits.max_stop_chars for stop in stops):
        raise invalid(f"A stop string has at most {limits.max_stop_chars} characters.", "stop")
    bias = request.bias
    if len(bias) > limits.max_logit_bias:
        raise invalid(f"At most {limits.max_logit_bias} entries are allowed.", "logit_bias")
    check_ids(service, tuple(bias), "logit_bias")
    check_ids(service, request.stop_token_ids or (), "stop_token_ids")


def _generation(
    service: Service,
    request: Generate,
    dialect: Dialect,
    prompt: list[int],
    max_tokens: int,
    arrival: float,
    caller: Caller,
) -> Generation:
    tenant, terms = caller.tenant, caller.terms(request.service_tier)
    most = service.limits.max_open_requests
    answers = answers_of(request, min(most, tenant.most_open or most))
    controls = row_controls(service, request, answers)
    if controls.min_tokens > max_tokens:
        raise invalid(f"min_tokens is above the limit of {max_tokens} tokens.", "min_tokens")
    salt = salt_of(tenant.name if service.isolate_tenants else "", request.cache_salt or "")
    submission = Submission(
        id=service.bridge.next_id(),
        prompt=prompt,
        max_tokens=max_tokens,
        controls=controls,
        arrival=arrival,
        n=answers.chosen_from if answers.beams is None else answers.count,
        beams=answers.beams,
        tenant=tenant.name,
        weight=tenant.weight,
        slo_class=terms.slo_class,
        priority=terms.priority if request.priority is None else request.priority,
        ttft_deadline=arrival + terms.ttft,
        queue_deadline=arrival + terms.queue_timeout,
        tpot_target=terms.tpot,
        salt=salt,
        prompt_keys=block_keys(prompt, salt),
    )
    identity = Identity(dialect.id_prefix + uuid.uuid4().hex, int(time.time()), service.model_id)
    return Generation(
        answers=answers,
        tenant=tenant,
        submission=submission,
        identity=identity,
        dialect=dialect,
        stops=tuple(request.stop or ()),
        stream=bool(request.stream),
        usage=request.wants_usage,
        logprobs=request.alternatives is not None,
    )
