"""A checked request, ready to be opened: everything a reply needs, computed once."""

from __future__ import annotations

import secrets
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from app.answers import Answers, answers_of
from app.chunks import Identity
from app.dialects import CHAT, COMPLETION, Dialect
from app.errors import invalid
from app.prompts import TemplateOptions, chat_tokens, completion_tokens, fit
from app.replies.base import Reply
from app.replies.choices import ChoicesReply, Prompt, Wishes
from app.replies.responses import ResponseReply
from app.replies.tools import FunctionsReply, ToolsReply
from app.sampling import check, row_controls
from app.schemas.chat import ChatRequest
from app.schemas.completion import CompletionRequest, OnePrompt
from app.schemas.parsing import parse
from app.schemas.responses import ResponsesRequest
from app.schemas.sampling import Generate
from app.service import Service
from app.structured.source import Source
from app.structured.wishes import source_of
from app.tenancy import Caller, Tenant, Terms
from app.tools.toolbox import Toolbox, tools_source
from engine.controls import RowControls
from engine.grammar import Grammar
from engine.inbox import Submission
from engine.prefix import block_keys, salt_of

COMPLETION_DEFAULT = 16
"""max_tokens of /v1/completions where none is given; OpenAI's number."""


@dataclass(frozen=True, slots=True)
class Stops:
    """Strings that end an answer; included: it shows the one that did."""

    strings: tuple[str, ...]
    included: bool = False


@dataclass(frozen=True, slots=True)
class Generation:
    """What to submit, and how to speak about what comes back.

    submissions: one for each prompt. answers: how many of the sequences of each become choices, and
    which. tenant: who sent it. terms: of its class. special: whether control tokens are shown.
    request_id, session_id: what the client calls it, and what it is a part of, in the body.
    charged: tokens of the tenant's budget. source: the grammar that the answers follow, if any.
    closes: whether they are to be complete within their tokens; None if the client does not say.
    """

    answers: Answers
    tenant: Tenant
    terms: Terms
    submissions: tuple[Submission, ...]
    identity: Identity
    reply: Reply
    stops: Stops
    stream: bool
    special: bool
    request_id: str | None
    charged: int
    session_id: str | None = None
    source: Source | None = None
    closes: bool | None = None

    def under(self, grammar_within: Callable[[int], Grammar]) -> Generation:
        """The same, with answers that follow the grammar for one of so many tokens."""
        submissions = tuple(
            replace(each, controls=replace(each.controls, grammar=grammar_within(each.max_tokens)))
            for each in self.submissions
        )
        return replace(self, submissions=submissions)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A prompt with what it may get. echo: the text that its answers begin with. scored: how many
    alternatives to each of its own tokens are asked for; None if nothing is said of them."""

    ids: list[int]
    max_tokens: int
    echo: str = ""
    scored: int | None = None


def prepare_chat(service: Service, body: bytes, arrival: float, caller: Caller) -> Generation:
    """Read a chat request that `caller` sent at engine time `arrival`.

    Raises ApiError (400, 404); may run on any thread.
    """
    request = parse(ChatRequest, body, strict_fields=service.strict_fields)
    check(service, request)
    tools = Toolbox.of(request.tool_wishes)
    options = TemplateOptions.of(request, tools)
    ids = chat_tokens(service, request.messages, options)
    max_tokens = fit(service, ids, "messages", request.token_limit, None)
    echo = request.messages[-1].content or "" if request.echo and options.continues else ""
    prompts = [Prepared(ids, max_tokens, echo, request.prompt_logprobs)]
    if tools is None:
        return _choices(service, request, CHAT, prompts, arrival, caller)
    source = tools_source(tools, request)
    spelled = ToolsReply if request.functions is None else FunctionsReply
    answered = _choices(service, request, CHAT, prompts, arrival, caller, spelled)
    return replace(answered, source=source)


def prepare_completion(service: Service, body: bytes, arrival: float, caller: Caller) -> Generation:
    """Read a completion request that `caller` sent at engine time `arrival`.

    Raises ApiError (400, 404); may run on any thread.
    """
    request = parse(CompletionRequest, body, strict_fields=service.strict_fields)
    check(service, request)
    _check_count(service, request, caller)
    prompts = [_completion_prompt(service, request, prompt) for prompt in request.prompt]
    return _choices(service, request, COMPLETION, prompts, arrival, caller)


def prepare_response(service: Service, body: bytes, arrival: float, caller: Caller) -> Generation:
    """Read a request to /v1/responses that `caller` sent at engine time `arrival`.

    Raises ApiError (400, 404); may run on any thread.
    """
    request = parse(ResponsesRequest, body, strict_fields=service.strict_fields)
    check(service, request)
    tools = Toolbox.of(request.tool_wishes)
    ids = chat_tokens(service, request.messages, TemplateOptions(tools=tools), param="input")
    max_tokens = fit(service, ids, "input", request.token_limit, None)
    identity = _identity(service, "resp_")
    answers = answers_of(request, _most(service, caller))
    reply = ResponseReply(request, identity, service.tokenizer, calls=tools is not None)
    prompts = [Prepared(ids, max_tokens)]
    answered = generation(service, request, answers, reply, identity, prompts, arrival, caller)
    return answered if tools is None else replace(answered, source=tools_source(tools, request))


def _identity(service: Service, prefix: str) -> Identity:
    return Identity(prefix + uuid.uuid4().hex, int(time.time()), service.model_id)


def _completion_prompt(service: Service, request: CompletionRequest, prompt: OnePrompt) -> Prepared:
    special = request.add_special_tokens is not False
    ids = completion_tokens(service, prompt, special=special)
    max_tokens = fit(service, ids, "prompt", request.token_limit, COMPLETION_DEFAULT)
    if not request.echo:
        return Prepared(ids, max_tokens, scored=request.prompt_logprobs)
    hidden = request.skip_special_tokens is not False
    text = prompt if isinstance(prompt, str) else service.tokenizer.decode(ids, hidden)
    asked = [each for each in (request.alternatives, request.prompt_logprobs) if each is not None]
    return Prepared(ids, max_tokens, text, scored=max(asked, default=None))


def _check_count(service: Service, request: CompletionRequest, caller: Caller) -> None:
    """Refuse more prompts than can be answered before work is put into any of them."""
    each = answers_of(request, _most(service, caller)).sequences
    most = _most(service, caller) // each
    if len(request.prompt) > most:
        message = f"At most {most} prompts with {each} sequences each are possible here."
        raise invalid(message, "prompt")


def _most(service: Service, caller: Caller) -> int:
    """Sequences that a request of this caller may have."""
    return int(min(service.limits.max_open_requests, caller.tenant.bounds.open))


def _choices(
    service: Service,
    request: ChatRequest | CompletionRequest,
    dialect: Dialect,
    prompts: Sequence[Prepared],
    arrival: float,
    caller: Caller,
    make_reply: type[ChoicesReply] = ChoicesReply,
) -> Generation:
    """A generation that is answered with choices."""
    identity = _identity(service, dialect.id_prefix)
    answers = answers_of(request, _most(service, caller))
    wishes = Wishes(
        usage=request.wants_usage,
        running_usage=request.wants_running_usage,
        logprobs=request.alternatives is not None,
        alternatives=request.alternatives or 0,
        prompt_logprobs=request.prompt_logprobs,
        token_ids=bool(request.return_token_ids),
        special=request.skip_special_tokens is False,
    )
    reply = make_reply(
        dialect,
        identity,
        service.tokenizer,
        wishes,
        [Prompt(each.ids, each.echo) for each in prompts],
        answers.count * len(prompts),
    )
    return generation(service, request, answers, reply, identity, prompts, arrival, caller)


def generation(
    service: Service,
    request: Generate,
    answers: Answers,
    reply: Reply,
    identity: Identity,
    prompts: Sequence[Prepared],
    arrival: float,
    caller: Caller,
) -> Generation:
    """A checked request as it is submitted, one submission for each prompt."""
    controls = row_controls(service, request, answers, scored=prompts[0].scored)
    for prompt in prompts:
        if controls.min_tokens > prompt.max_tokens:
            message = f"min_tokens is above the limit of {prompt.max_tokens} tokens."
            raise invalid(message, "min_tokens")
    terms = caller.terms(request.service_tier)
    sender = (caller.tenant, terms)
    return Generation(
        answers=answers,
        tenant=caller.tenant,
        terms=terms,
        submissions=tuple(
            _submission(
                service, request, answers, _seeded(request, controls), prompt, arrival, sender
            )
            for prompt in prompts
        ),
        identity=identity,
        reply=reply,
        stops=Stops(tuple(request.stop or ()), bool(request.include_stop_str_in_output)),
        stream=bool(request.stream),
        special=request.skip_special_tokens is False,
        request_id=request.request_id,
        session_id=request.session_id,
        charged=sum(_charged(request, answers, caller.tenant, prompt) for prompt in prompts),
        source=source_of(request),
        closes=request.close_within_limit,
    )


def _charged(request: Generate, answers: Answers, tenant: Tenant, prompt: Prepared) -> int:
    """Tokens that a prompt and its answers may need; the answers usually, if they have no limit."""
    most = prompt.max_tokens
    if request.token_limit is None and tenant.budget is not None:
        most = min(most, tenant.budget.assumed)
    return len(prompt.ids) + answers.sequences * most


def _seeded(request: Generate, controls: RowControls) -> RowControls:
    """Prompts without a seed draw differently, also where they are the same; one that is given
    holds for all of them."""
    if request.seed is not None:
        return controls
    return replace(controls, seed=secrets.randbits(63))


def _submission(
    service: Service,
    request: Generate,
    answers: Answers,
    controls: RowControls,
    prompt: Prepared,
    arrival: float,
    sender: tuple[Tenant, Terms],
) -> Submission:
    tenant, terms = sender
    salt = salt_of(tenant.name if service.isolate_tenants else "", request.cache_salt or "")
    return Submission(
        id=service.bridge.next_id(),
        prompt=prompt.ids,
        max_tokens=prompt.max_tokens,
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
        prompt_keys=block_keys(prompt.ids, salt),
    )
