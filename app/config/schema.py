"""Every knob, its default and what it means.

The descriptions are the comments of `config.yaml`; a test keeps the two equal. Values are strict:
"16", 16.5 and true are not integers. Durations are in seconds, sizes in bytes.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr

from app.config.cuda_schema import CudaConfig
from app.config.experiment_schema import ExperimentConfig
from app.config.metrics_schema import MetricsConfig
from app.config.record_schema import RecordConfig
from app.config.section import HeaderName, Label, Name, Section
from app.config.shadow_schema import ShadowConfig
from app.config.sizes import Size, parse_size
from app.config.tracing_schema import TracingConfig

DEFAULT_MODEL_NAME: Final = "smollm2-135m-instruct"
DEFAULT: Final = "default"
"""The tenant and the class of requests that are of no other; both may be configured."""

MOST_WEIGHT: Final = 1e6
"""And the inverse is the least: sums of what tenants got, by weight, have to stay finite."""

MOST_BLOCKS: Final = 2**22
"""More than fits into any machine; each block takes memory beside what it holds."""

HASHED: Final = "sha256:"
"""In front of the hexadecimal SHA-256 of a key, which may stand in a key's place."""

CPU_STEP_TOKENS: Final = 128
"""Two cores take less than 60 ms for so many: a new prompt holds everybody up no longer."""

CUDA_STEP_TOKENS: Final = 2048
"""An H200 computes so many of an 8B model in some 60 ms, by arithmetic at half of its peak."""

MOST_GRAMMAR: Final = 2**18
"""Bytes: chains of references in a longer one could be deeper than the stack."""

_BEARER: Final = re.compile(r"[A-Za-z0-9._~+/-]+=*")
_SHA256: Final = re.compile(r"sha256:[0-9A-Fa-f]{64}")
_OF_NOTHING: Final = HASHED + hashlib.sha256(b"").hexdigest()
_ORIGIN: Final = re.compile(r"[a-z][a-z0-9+.-]*://[a-z0-9.:\[\]_-]+")


def parse_kv_memory(value: object) -> object:
    """Accept `auto` or a size of at least one byte; raises ValueError for anything else."""
    size = parse_size(value)
    if value == "auto" or (type(size) is int and size > 0):
        return size
    raise ValueError("expected auto, a number of bytes, or a size such as 512MiB or 2GiB")


def parse_offload_memory(value: object) -> object:
    """Accept a size, 0 included; raises ValueError for anything else."""
    size = parse_size(value)
    if type(size) is int and size >= 0:
        return size
    raise ValueError("expected 0, a number of bytes, or a size such as 512MiB or 2GiB")


def hashed(secret: SecretStr) -> SecretStr:
    """The sha256:HEX of a key, which is all that is kept of it; one that is hashed stays as it is.

    A plain key is what can stand behind `Authorization: Bearer` (RFC 6750, section 2.1). Raises
    ValueError for anything else, and so for the asterisks that stand for a secret in print.
    """
    text = secret.get_secret_value()
    if text.startswith(HASHED):
        if not _SHA256.fullmatch(text):
            raise ValueError("expected 64 hexadecimal digits after sha256:")
        if text.lower() == _OF_NOTHING:
            raise ValueError("expected the hash of a key; this one is of an empty text")
        return SecretStr(text.lower())
    if not _BEARER.fullmatch(text):
        raise ValueError("expected letters, digits and -._~+/ only, then any =; or sha256:HEX")
    return SecretStr(HASHED + hashlib.sha256(text.encode()).hexdigest())


def origin(text: str) -> str:
    """Accept what browsers send as Origin (RFC 6454, section 7), or *; raises ValueError."""
    if text != "*" and not _ORIGIN.fullmatch(text):
        raise ValueError("expected * or an origin such as https://chat.example.com, without a path")
    return text


KvMemory: TypeAlias = Annotated[int | Literal["auto"], BeforeValidator(parse_kv_memory)]
OffloadMemory: TypeAlias = Annotated[int, BeforeValidator(parse_offload_memory)]
ReliefStep: TypeAlias = Literal["evict", "offload", "recompute"]
BackendName: TypeAlias = Literal["auto", "cpu", "cuda", "simulated"]
DtypeName: TypeAlias = Literal["auto", "int8", "float32", "bfloat16"]
KvDtypeName: TypeAlias = Literal["auto", "float32", "bfloat16", "int8", "fp8"]
LogFormat: TypeAlias = Literal["auto", "json", "console"]
Positive: TypeAlias = Annotated[int, Field(ge=1)]
Count: TypeAlias = Annotated[int, Field(ge=0)]
Seconds: TypeAlias = Annotated[float, Field(ge=0)]
Secret: TypeAlias = Annotated[SecretStr, AfterValidator(hashed)]
WebOrigin: TypeAlias = Annotated[str, AfterValidator(origin)]
Target: TypeAlias = Annotated[float, Field(gt=0)]


class ServerConfig(Section):
    """The HTTP server."""

    host: Name = Field(
        default="127.0.0.1", description="address to listen on; 0.0.0.0 for all interfaces"
    )
    port: int = Field(default=8000, ge=0, le=65535, description="TCP port; 0 takes any free one")
    shutdown_grace_s: Seconds = Field(
        default=30.0, description="how long requests in flight may go on after SIGTERM"
    )
    keep_alive_s: Positive = Field(
        default=75, description="how long an idle HTTP connection stays open"
    )
    send_timeout_s: Annotated[float, Field(gt=0)] = Field(
        default=60.0, description="how long a client may take nothing of its reply; then it is cut"
    )
    head_timeout_s: Target = Field(
        default=10.0, description="how long the head of a request may take to come; then 408"
    )
    body_timeout_s: Target = Field(
        default=60.0, description="how long the body of a request may take to come; then 408"
    )
    max_body_bytes: Size = Field(
        default=4 * 2**20, ge=1, description="largest request body; more is answered 413"
    )
    max_header_bytes: Size = Field(
        default=32 * 2**10, ge=1024, description="largest head of a request; more is answered 431"
    )
    max_headers: Positive = Field(
        default=100, description="most header lines of a request; more are answered 431"
    )
    cors_origins: list[WebOrigin] = Field(
        default=[], description="origins whose pages may ask from a browser; [] for none"
    )
    admin_key: Secret | None = Field(
        default=None,
        description="key of the /admin routes, plain or sha256:HEX; null: there are none",
    )


class ModelConfig(Section):
    """The model that is served."""

    path: Name = Field(
        default="auto",
        description="a .gguf file or a Hugging Face folder; auto is the default model",
    )
    name: Name | None = Field(
        default=None, description="name in the API; null derives it from the model or its file"
    )
    max_model_len: Annotated[int, Field(ge=2)] | None = Field(
        default=None,
        description="most tokens of one request, prompt and answer; null: the model's own",
    )
    dtype: DtypeName = Field(
        default="auto",
        description="weights: int8 or float32 on a CPU, bfloat16 on CUDA; auto: int8 or bfloat16",
    )
    directory: Name = Field(
        default="models", description="folder of downloaded models and of int8 weights made once"
    )

    @property
    def served_name(self) -> str:
        """The name under which clients ask for the model."""
        if self.name is not None:
            return self.name
        if self.path == "auto":
            return DEFAULT_MODEL_NAME
        return Path(self.path).absolute().name.removesuffix(".gguf")


class SimulatedConfig(Section):
    """The simulated backend: step time as a linear function of the step's work."""

    base_s: Seconds = Field(default=0.002, description="seconds of an empty step")
    prompt_token_s: Seconds = Field(
        default=0.0001, description="seconds more for each prompt token"
    )
    decode_s: Seconds = Field(default=0.0002, description="seconds more for each decode")
    kv_read_s: Seconds = Field(
        default=0.0, description="seconds more for each KV token that decodes read"
    )
    chunk_context_s: Seconds = Field(
        default=0.0, description="seconds more for each chunk token times the context it attends to"
    )
    total_blocks: Annotated[int, Field(ge=1, le=MOST_BLOCKS)] = Field(
        default=4096, description="KV blocks of 16 tokens"
    )
    host_blocks: Annotated[int, Field(ge=0, le=MOST_BLOCKS)] = Field(
        default=0, description="blocks that can be offloaded"
    )
    move_s: Seconds = Field(
        default=0.0001, description="seconds that one block takes to the host, or back"
    )
    real_time: bool = Field(default=True, description="whether a step really takes its time")


class SpeculationConfig(Section):
    """Speculative decoding: the same tokens, several in a step where they were guessed."""

    method: Literal["none", "ngram", "draft"] = Field(
        default="none",
        description="ngram: what stood behind the same tokens before; draft: what model says",
    )
    tokens: Annotated[int, Field(ge=1, le=64)] = Field(
        default=15, description="most guesses of a sequence in a step; fewer where they do not pay"
    )
    ngram: Annotated[int, Field(ge=1, le=16)] = Field(
        default=3, description="how many tokens must have stood together before, for ngram"
    )
    model: Name | None = Field(
        default=None,
        description="a small model with the vocabulary of the one that is served, for draft",
    )
    dtype: Literal["int8", "float32"] = Field(
        default="int8", description="its weights and their products; its KV is kept in the same"
    )
    kv_memory: Annotated[Size, Field(ge=1)] = Field(
        default=256 * 2**20, description="size of its KV cache, beside engine.kv_memory"
    )


class EngineConfig(Section):
    """The engine: backend, memory, and the bounds of a step."""

    backend: BackendName = Field(
        default="auto",
        description="where tokens are computed: cuda or cpu; auto: cuda where that can be",
    )
    kv_memory: KvMemory = Field(
        default="auto", description="size of the KV cache: auto, bytes, or a size such as 512MiB"
    )
    kv_dtype: KvDtypeName = Field(
        default="auto",
        description="how it is kept: float32, bfloat16, int8, fp8 (CUDA); auto is model.dtype",
    )
    relief: list[ReliefStep] = Field(
        default=["evict", "offload", "recompute"],
        description="what is done in turn when KV blocks run out",
    )
    offload_memory: OffloadMemory = Field(
        default=0, description="size of the host memory that blocks are offloaded to; 0 for none"
    )
    max_step_tokens: Positive | None = Field(
        default=None,
        description="token budget of a step; null: 128 on a CPU (60 ms of two cores), 2048 on CUDA",
    )
    prompt_step_tokens: Positive | None = Field(
        default=256,
        description="the same where nobody is being answered; null, or less: no other budget",
    )
    max_rows: Positive = Field(default=64, description="most sequences computed in one step")
    allocation: Literal["paged", "reserve"] = Field(
        default="paged",
        description="KV blocks as tokens come (paged), or for the longest answer (reserve)",
    )
    prefix_cache: bool | Literal["auto"] = Field(
        default="auto",
        description="whether requests that begin alike share what is computed; auto: if paged",
    )
    prefix_scope: Literal["all", "tenant"] = Field(
        default="all", description="who shares: all requests, or those of one tenant"
    )
    depth: Annotated[int, Field(ge=0, le=1)] | None = Field(
        default=None,
        description="steps in flight while the next is planned, 0 or 1; null: 1 on CUDA only",
    )
    threads: Positive | None = Field(
        default=None, description="threads that compute a step; null: torch's default"
    )
    tensor_parallel: Annotated[int, Field(ge=1, le=64)] = Field(
        default=1, description="processes that share the model, as many as torchrun starts"
    )
    rank_timeout_s: Target = Field(
        default=60.0, description="how long a step waits for the last of them; then all end"
    )
    speculation: SpeculationConfig = Field(
        default=SpeculationConfig(), description="guesses of what follows, verified in a step"
    )
    cuda: CudaConfig = Field(default=CudaConfig(), description="read when the backend is cuda")
    simulated: SimulatedConfig = Field(
        default=SimulatedConfig(), description="step times, read when the backend is simulated"
    )

    @property
    def step_tokens(self) -> int:
        """The token budget of a step."""
        usual = CUDA_STEP_TOKENS if self.backend == "cuda" else CPU_STEP_TOKENS
        return self.max_step_tokens or usual

    @property
    def steps_in_flight(self) -> int:
        """How many steps may be in flight while the next is planned."""
        return int(self.backend == "cuda") if self.depth is None else self.depth

    @property
    def caches_prefixes(self) -> bool:
        """Whether there is a prefix cache. Reserved blocks are never shared."""
        return self.allocation == "paged" if self.prefix_cache == "auto" else self.prefix_cache


class SchedulerConfig(Section):
    """The scheduling policy."""

    policy: Name = Field(
        default="fcfs", description="name of an installed policy, or package.module:Class"
    )
    params: dict[str, Any] = Field(default={}, description="the policy's own parameters")
    allowed: list[Name] | None = Field(
        default=None,
        description="policies that POST /admin/policy may take; null: the built-in ones",
    )


class ClassConfig(Section):
    """A service class: what its requests are promised, and what they may hold together."""

    ttft_s: Target | None = Field(
        default=None, description="target from arrival to the first token; null: none"
    )
    tpot_s: Target | None = Field(
        default=None, description="target for each token after the first; null: none"
    )
    queue_timeout_s: Target | None = Field(
        default=None, description="longest wait to be started; then 503; null: for ever"
    )
    priority: int = Field(
        default=0,
        ge=-(2**63),
        lt=2**63,
        description="of requests that give none themselves; smaller is more urgent",
    )
    max_running: Positive | None = Field(
        default=None, description="most requests that run at once; null: no limit"
    )
    max_waiting: Positive | None = Field(
        default=None, description="most requests that wait; more are answered 429; null: no limit"
    )
    max_waiting_tokens: Positive | None = Field(
        default=None, description="as limits.max_waiting_tokens, of this class"
    )
    max_wait_s: Target | None = Field(
        default=None, description="as limits.max_wait_s, of this class"
    )
    max_blocks_fraction: Annotated[float, Field(gt=0, le=1)] | None = Field(
        default=None, description="share of the KV blocks that its requests may hold; null: all"
    )


class TenantConfig(Section):
    """A tenant: how its requests are known, and what they may have."""

    keys: list[Secret] = Field(
        default=[],
        description="API keys, plain or sha256:HEX; sent as Authorization: Bearer KEY",
    )
    weight: Annotated[float, Field(ge=1 / MOST_WEIGHT, le=MOST_WEIGHT)] = Field(
        default=1.0, description="its share beside the others', for policies that share"
    )
    classes: list[Name] = Field(
        default=[], description="classes of its requests, the usual one first; empty: any"
    )
    max_open_requests: Positive | None = Field(
        default=None, description="most sequences accepted at once; more are answered 429"
    )
    max_waiting: Positive | None = Field(
        default=None, description="as limits.max_waiting, of this tenant"
    )
    max_waiting_tokens: Positive | None = Field(
        default=None, description="as limits.max_waiting_tokens, of this tenant"
    )
    requests_per_minute: Positive | None = Field(
        default=None, description="requests let in a minute; more are answered 429; null: no limit"
    )
    tokens_per_minute: Positive | None = Field(
        default=None, description="tokens a minute, prompts and answers; then 429; null: no limit"
    )
    burst_s: Target = Field(
        default=60.0, description="seconds' worth of both that may be used at once"
    )
    assumed_tokens: Positive = Field(
        default=256, description="charged at first for an answer without max_tokens"
    )


class IdentityConfig(Section):
    """How a request's tenant and class are told."""

    require_key: bool = Field(
        default=False, description="whether a request without a tenant's key is answered 401"
    )
    trust_proxy_headers: bool = Field(
        default=False, description="whether the headers below count; only behind a gateway"
    )
    tenant_headers: list[HeaderName] = Field(
        default=["x-gateway-inference-fairness-id", "x-openwebui-user-id"],
        description="name the tenant",
    )
    class_headers: list[HeaderName] = Field(
        default=["x-gateway-inference-objective"], description="name the class"
    )


class GuardConfig(Section):
    """What no scheduling policy may do to a request."""

    enabled: bool = Field(
        default=True, description="false only to test a policy's own bounds; faults are survived"
    )
    every: Positive = Field(
        default=32,
        description="one of so many admissions goes to the oldest request, if it was passed over",
    )
    window: Annotated[int, Field(ge=1, le=1000)] = Field(
        default=16, description="steps within which everybody who runs makes progress"
    )
    max_hold_s: Seconds = Field(
        default=1.0, description="longest time a policy may hold everybody back"
    )
    max_step_cpu_s: Annotated[float, Field(gt=0)] = Field(
        default=0.005,
        description="CPU time of a policy in a step; after 3 of 100 with more fcfs takes over",
    )


class LimitsConfig(Section):
    """What a request, or all of them together, may ask for."""

    max_open_requests: Positive = Field(
        default=256, description="most requests accepted at once; more are answered 429"
    )
    max_waiting: Positive | None = Field(
        default=None,
        description="most sequences without an answer yet; then 429; null: no limit",
    )
    max_waiting_tokens: Positive | None = Field(
        default=None,
        description="most tokens of prompts without an answer yet; then 429; null: no limit",
    )
    max_wait_s: Target | None = Field(
        default=None,
        description="longest estimate of a wait for the first token; then 429; null: no limit",
    )
    max_output_tokens: Positive | None = Field(
        default=None, description="most tokens of one answer; null: what the context leaves"
    )
    max_stop_strings: Count = Field(default=16, description="most stop strings of a request")
    max_stop_chars: Positive = Field(default=1024, description="most characters of a stop string")
    max_logit_bias: Count = Field(default=1024, description="most logit_bias entries of a request")
    max_allowed_token_ids: Count = Field(
        default=1024, description="most allowed_token_ids of a request"
    )
    max_bad_words: Count = Field(default=64, description="most bad_words of a request")


class ApiConfig(Section):
    """How requests are read."""

    strict_fields: bool = Field(
        default=False, description="whether unknown request fields are refused"
    )
    request_templates: bool = Field(
        default=False, description="whether requests may bring a chat_template; only among friends"
    )
    per_request_metrics: bool = Field(
        default=False, description="whether replies have a metrics object: times, tokens a second"
    )


class SseConfig(Section):
    """The event stream."""

    keepalive_interval_s: Seconds = Field(
        default=0.0, description="silence after which a keep-alive is sent; 0 sends none"
    )
    keepalive_mode: Literal["comment", "chunk"] = Field(
        default="comment", description="keep-alive as an SSE comment or as an empty chunk"
    )


class BridgeConfig(Section):
    """Between the HTTP side and the engine thread."""

    max_lag: Positive = Field(
        default=4096, description="tokens a client may lag behind before it is cut off"
    )


class HealthConfig(Section):
    """What /health and its kin go by."""

    stuck_after_s: Target | None = Field(
        default=60.0, description="age of a step from which the engine is stuck; null: never"
    )


class TextConfig(Section):
    """Tokenizing and templating."""

    workers: Positive = Field(
        default=2, description="threads that tokenize and apply chat templates"
    )


class StructuredConfig(Section):
    """What answers may be held to: response_format, structured_outputs, tools."""

    workers: Positive = Field(
        default=2, description="processes that try schemas and grammars out; started when needed"
    )
    max_bytes: Annotated[Size, Field(ge=1, le=MOST_GRAMMAR)] = Field(
        default=64 * 2**10, description="largest schema or grammar; more is answered 400"
    )
    timeout_s: Target = Field(
        default=5.0, description="longest time that trying one out may take; then 400"
    )
    cache_entries: Positive = Field(
        default=64, description="compiled ones that are kept for the next request"
    )
    forced_tokens: bool = Field(
        default=True, description="whether what a grammar leaves no choice about takes no steps"
    )
    close_within_limit: bool = Field(
        default=False,
        description="whether JSON is closed before max_tokens cuts it, if a request does not say",
    )


class LogConfig(Section):
    """Logs, written to stderr."""

    level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="least severe level that is written"
    )
    format: LogFormat = Field(
        default="auto",
        description="json (an object a line), console (text), or auto: console on a terminal",
    )


class Config(Section):
    """The whole configuration, with the defaults of `config.yaml`."""

    server: ServerConfig = ServerConfig()
    model: ModelConfig = ModelConfig()
    engine: EngineConfig = EngineConfig()
    scheduler: SchedulerConfig = SchedulerConfig()
    guard: GuardConfig = GuardConfig()
    experiment: ExperimentConfig = ExperimentConfig()
    shadow: ShadowConfig = ShadowConfig()
    classes: dict[Label, ClassConfig] = Field(
        default={}, description="service classes by name; service_tier asks for one"
    )
    tenants: dict[Label, TenantConfig] = Field(
        default={}, description="tenants by name; default stands for all others"
    )
    identity: IdentityConfig = IdentityConfig()
    limits: LimitsConfig = LimitsConfig()
    api: ApiConfig = ApiConfig()
    sse: SseConfig = SseConfig()
    bridge: BridgeConfig = BridgeConfig()
    health: HealthConfig = HealthConfig()
    text: TextConfig = TextConfig()
    structured: StructuredConfig = StructuredConfig()
    metrics: MetricsConfig = MetricsConfig()
    tracing: TracingConfig = TracingConfig()
    record: RecordConfig = RecordConfig()
    log: LogConfig = LogConfig()
