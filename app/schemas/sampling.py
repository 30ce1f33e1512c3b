"""The fields that chat and completions share."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo
from pydantic.functional_validators import field_validator

from app.schemas.parsing import WireModel, refused
from app.schemas.shapes import documented, list_of
from app.schemas.structure import (
    AnswerFormat,
    GuidedChoice,
    GuidedSchema,
    GuidedText,
    Structure,
    schema_of,
)
from engine.beam_search import MAX_PENALTY

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1


def number(minimum: float, maximum: float) -> Any:
    return Field(ge=minimum, le=maximum, allow_inf_nan=False)


def _as_list(value: Any) -> Any:
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list):
        raise refused("must be a string or a list of strings")
    return value


def _no_empty_string(value: list[str]) -> list[str]:
    if "" in value:
        raise refused("a string in it must not be empty")
    return value


def _only_the_first_wrong(value: Any) -> Any:
    """To list what is wrong with each of very many entries takes longer than to read them all."""
    if not isinstance(value, dict):
        return value
    wrong = (key for key, bias in value.items() if not _is_bias(bias))
    first = next(wrong, None)
    return value if first is None else {first: value[first]}


def _is_bias(value: Any) -> bool:
    return type(value) in (int, float) and -MAX_BIAS <= value <= MAX_BIAS


def _keyed_by_ids(value: dict[str, float]) -> dict[str, float]:
    if not all(key.isascii() and key.isdigit() and len(key) < 10 for key in value):
        raise refused("the keys must be token ids")
    return value


MAX_BIAS = 100
"""OpenAI's bound on each value of `logit_bias`, either way."""

MAX_N = 128
"""OpenAI's bound on `n`, here on `best_of` as well; the rows of a step bound them, too."""

NOT_EMPTY = {"type": "string", "minLength": 1}
"""A string of a character or more, as a JSON schema."""

PositiveInt: TypeAlias = Annotated[int, Field(ge=1)]
Count: TypeAlias = Annotated[int, Field(ge=0)]
Penalty: TypeAlias = Annotated[float, number(-2, 2)]
StopStrings: TypeAlias = Annotated[
    list[str],
    Field(fail_fast=True),
    BeforeValidator(_as_list),
    AfterValidator(_no_empty_string),
    documented(NOT_EMPTY, list_of(NOT_EMPTY)),
]
Words: TypeAlias = Annotated[list[Annotated[str, Field(min_length=1)]], Field(fail_fast=True)]
TokenIds: TypeAlias = Annotated[list[Count], Field(fail_fast=True)]
Bias: TypeAlias = Annotated[
    dict[str, Annotated[float, number(-MAX_BIAS, MAX_BIAS)]],
    BeforeValidator(_only_the_first_wrong),
    AfterValidator(_keyed_by_ids),
]


def at_once(value: int | None, info: ValidationInfo) -> int | None:
    """The check of what no stream has a place for."""
    if value is not None and info.data.get("stream"):
        raise refused("is not available with stream: true")
    return value


PromptLogprobs: TypeAlias = Annotated[int | None, Field(ge=0, le=20), AfterValidator(at_once)]
"""How many alternatives to report of each token of the prompt, beside itself; vLLM's field."""


class StreamOptions(WireModel):
    """include_usage: the last chunk says how many tokens there were; continuous_usage_stats: each
    chunk says how many there are so far."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


CACHE_SALT = r"^[^@/\\\x00]*$"
"""vLLM's rule for `cache_salt`: no @, slash, backslash or NUL."""

REQUEST_ID = r"^[A-Za-z0-9._:-]{1,128}$"
"""What may name a request, in a header as in a body."""


class Generate(WireModel):
    """What may be asked of a generation. None and absent mean the same everywhere."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: PositiveInt | None = None
    min_tokens: Count | None = None
    temperature: Annotated[float, number(0, 2)] | None = None
    top_p: Annotated[float, number(0, 1)] | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = None
    min_p: Annotated[float, number(0, 1)] | None = None
    seed: Annotated[int, Field(ge=INT64_MIN, le=INT64_MAX)] | None = None
    stop: StopStrings | None = None
    stop_token_ids: TokenIds | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    ignore_eos: bool | None = None
    bad_words: Words | None = None
    allowed_token_ids: Annotated[TokenIds, Field(min_length=1)] | None = None
    logit_bias: Bias | None = None
    cache_salt: Annotated[str, Field(min_length=1, max_length=128, pattern=CACHE_SALT)] | None = (
        None
    )
    n: Annotated[int, Field(ge=1, le=MAX_N)] | None = None
    service_tier: str | None = None
    priority: Annotated[int, Field(ge=INT64_MIN, le=INT64_MAX)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=10, allow_inf_nan=False)] | None = None
    use_beam_search: bool | None = None
    length_penalty: Annotated[float, number(-MAX_PENALTY, MAX_PENALTY)] | None = None
    early_stopping: bool | Literal["never"] | None = None
    return_token_ids: bool | None = None
    echo: bool | None = None
    response_format: AnswerFormat = None
    structured_outputs: Structure = None
    guided_json: GuidedSchema = None
    guided_regex: GuidedText = None
    guided_choice: GuidedChoice = None
    guided_grammar: GuidedText = None
    close_within_limit: bool | None = None
    request_id: Annotated[str, Field(pattern=REQUEST_ID)] | None = None
    session_id: str | None = None
    user: str | None = None
    metadata: dict[str, Any] | None = None

    @field_validator("stream_options")
    @classmethod
    def _needs_stream(
        cls, value: StreamOptions | None, info: ValidationInfo
    ) -> StreamOptions | None:
        if value is not None and "stream" in info.data and not info.data["stream"]:
            raise refused("stream_options are allowed only with stream: true")
        return value

    @property
    def bias(self) -> dict[int, float]:
        """logit_bias by token id; JSON only knows strings as keys."""
        return {int(token): bias for token, bias in (self.logit_bias or {}).items()}

    @property
    def token_limit(self) -> int | None:
        """Tokens to generate at most, as the client said."""
        return self.max_tokens

    @property
    def best_from(self) -> int | None:
        """Of how many sequences the answers are the best; None if the client does not say."""
        return None

    @property
    def answer_schema(self) -> tuple[dict[str, Any], str] | None:
        """The JSON schema that the format of the answer asks for, and the field it came in."""
        schema = schema_of(self.response_format)
        return None if schema is None else (schema, "response_format")

    @property
    def alternatives(self) -> int | None:
        """Log-probabilities to report beside the chosen token's; None for no report at all."""
        raise NotImplementedError

    @property
    def wants_usage(self) -> bool:
        """Whether a stream ends with a usage chunk."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def wants_running_usage(self) -> bool:
        """Whether each chunk of such a stream has usage as well."""
        return self.wants_usage and bool(
            self.stream_options and self.stream_options.continuous_usage_stats
        )
