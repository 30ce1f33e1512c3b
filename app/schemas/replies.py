"""Replies as clients see them, for the OpenAPI document. Replies are written by hand, for speed."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

FinishReason = Literal["stop", "length", "tool_calls", "function_call"]


class ReplyModel(BaseModel):
    """Part of a reply; clients must not mind members that they do not know."""

    model_config = ConfigDict(extra="allow")


class ErrorDetail(ReplyModel):
    """`param` is the path of the field to blame, if one is; `code` is for programs."""

    message: str
    type: str
    param: str | None
    code: str | None


class Error(ReplyModel):
    """What every answer above 399 says."""

    error: ErrorDetail


class CachedTokens(ReplyModel):
    """Prompt tokens that were not computed again."""

    cached_tokens: int


class UsageReply(ReplyModel):
    """Tokens of a request, all of its choices together."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens | None


class AlternativeToken(ReplyModel):
    """A token that could have been chosen. `bytes` may be part of a character."""

    token: str
    logprob: float
    bytes: list[int]


class ChatToken(AlternativeToken):
    """A token that was chosen, and the best of what could have been."""

    top_logprobs: list[AlternativeToken]


class ChatLogprobsReply(ReplyModel):
    """Of each generated token."""

    content: list[ChatToken]
    refusal: None


class CompletionLogprobsReply(ReplyModel):
    """Parallel lists, one entry a token; null before the first token of an echoed prompt."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class PromptToken(ReplyModel):
    """A token at some place of a prompt. `rank` is 1 for the likeliest there."""

    logprob: float
    rank: int
    decoded_token: str


class CalledFunction(ReplyModel):
    """The arguments are JSON by the function's schema, unless the answer was cut."""

    name: str
    arguments: str


class ToolCall(ReplyModel):
    """A call that the client is to make."""

    id: str
    type: Literal["function"]
    function: CalledFunction


class Message(ReplyModel):
    """What the model says, or what it calls."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    tool_calls: list[ToolCall] | None = None
    function_call: CalledFunction | None = None


class ChatChoice(ReplyModel):
    """One answer. `stop_reason` is the stop string or token id that ended it, if one did."""

    index: int
    message: Message
    logprobs: ChatLogprobsReply | None
    finish_reason: FinishReason
    stop_reason: str | int | None
    token_ids: list[int] | None = None


class ChatCompletion(ReplyModel):
    """The reply to a chat."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: UsageReply
    system_fingerprint: None
    prompt_token_ids: list[int] | None = None
    prompt_logprobs: list[dict[str, PromptToken] | None] | None = None
    metrics: dict[str, Any] | None = None


class CompletionChoice(ReplyModel):
    """One answer to one prompt, in the order of the prompts."""

    index: int
    text: str
    logprobs: CompletionLogprobsReply | None
    finish_reason: FinishReason
    stop_reason: str | int | None
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None
    prompt_logprobs: list[dict[str, PromptToken] | None] | None = None


class Completion(ReplyModel):
    """The reply to one prompt, or to several."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: UsageReply
    system_fingerprint: None
    metrics: dict[str, Any] | None = None


class OutputText(ReplyModel):
    """The text of a response."""

    type: Literal["output_text"]
    text: str
    annotations: list[Any] = Field(max_length=0)
    logprobs: list[ChatToken]


class OutputMessage(ReplyModel):
    """What the model says."""

    id: str
    type: Literal["message"]
    status: Literal["completed", "incomplete"]
    role: Literal["assistant"]
    content: list[OutputText]


class OutputCall(ReplyModel):
    """A call that the client is to make. An incomplete one is cut, and so are its arguments."""

    id: str
    type: Literal["function_call"]
    status: Literal["completed", "incomplete"]
    call_id: str
    name: str
    arguments: str


class OutputTokens(ReplyModel):
    """There is no hidden reasoning."""

    reasoning_tokens: Literal[0]


class ResponseUsage(ReplyModel):
    """Tokens of a response."""

    input_tokens: int
    input_tokens_details: CachedTokens
    output_tokens: int
    output_tokens_details: OutputTokens
    total_tokens: int


class ModelResponse(ReplyModel):
    """The reply of /v1/responses."""

    id: str
    object: Literal["response"]
    created_at: int
    model: str
    status: Literal["completed", "incomplete"]
    output: list[OutputMessage | OutputCall]
    usage: ResponseUsage
    error: None
    incomplete_details: dict[str, str] | None


class ModelCard(ReplyModel):
    """A model that is served. `max_model_len` and `context_length` are the same, in tokens."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str | None
    parent: str | None
    max_model_len: int
    context_length: int


class ModelList(ReplyModel):
    """The models that are served."""

    object: Literal["list"]
    data: list[ModelCard]


class TokenizeReply(ReplyModel):
    """Token ids, and their texts if asked for."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class DetokenizeReply(ReplyModel):
    """The text of token ids."""

    prompt: str


class LoadReply(ReplyModel):
    """Requests that are open."""

    server_load: int


class VersionReply(ReplyModel):
    """The version of Octavo."""

    version: str
