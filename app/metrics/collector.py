"""Books what happens on the event loop, and renders it with the engine's latest snapshot.

Nothing here touches the engine thread. Outputs are booked once per delivery, in plain numbers on
the event loop, which is also where they are rendered: no lock is taken for a token.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from app.config.metrics_schema import MetricsConfig
from app.config.schema import DEFAULT_MODEL_NAME
from app.metrics import experiment, shadow, snapshot, vllm
from app.metrics.buckets import Buckets
from app.metrics.histograms import Histogram
from app.metrics.http import HttpBook
from app.metrics.labels import Label, Names
from app.metrics.requests import Ending, Listener, RequestBook, unknown
from engine.clock import Clock, MonotonicClock
from engine.inbox import Submission
from engine.outputs import Output, Stats

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def _nobody() -> tuple[str, ...]:
    """No names are configured."""
    return ()


def _unnamed() -> str:
    """No policy is known by name."""
    return ""


@dataclass(frozen=True, slots=True)
class Subject:
    """What the metrics are of, asked for anew at each scrape where it can change.

    policy: the name of the policy in charge. tenants, classes: names of the configuration. waits:
    what first tokens are expected to take, by class. experiment: what is known of the live one.
    shadow: what others were scored. clock: the engine's.
    """

    model: str = DEFAULT_MODEL_NAME
    version: str = "0"
    backend: str = ""
    policy: Callable[[], str] = _unnamed
    tenants: Names = _nobody
    classes: Names = _nobody
    waits: Callable[[], Mapping[str, float]] = dict
    experiment: Callable[[], experiment.Figures] = experiment.no_experiment
    shadow: Callable[[], shadow.Figures] = shadow.no_shadow
    clock: Clock = field(default_factory=MonotonicClock)


class Metrics(Collector):
    """Everything that /metrics shows. `latest`: the snapshot before the first delivery."""

    def __init__(
        self,
        config: MetricsConfig | None = None,
        subject: Subject | None = None,
        latest: Stats | None = None,
    ) -> None:
        config = config or MetricsConfig()
        buckets = Buckets.of(config.buckets)
        self._config = config
        self._subject = subject = subject or Subject()
        self._stats = latest or Stats()
        self._classes = Label(subject.classes, config.max_names)
        self._requests = RequestBook(
            buckets, Label(subject.tenants, config.max_names), self._classes
        )
        self._http = HttpBook()
        self.step_seconds = Histogram("octavo_step_seconds", "Seconds of a step", buckets.step)
        self.step_tokens = Histogram(
            "octavo_step_tokens", "Tokens computed in a step", buckets.tokens
        )
        self.step_rows = Histogram(
            "octavo_step_rows", "Sequences computed in a step", buckets.tokens
        )
        self._registry = CollectorRegistry()
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    def follow(
        self, submissions: Sequence[Submission], ending: Ending = unknown
    ) -> AbstractContextManager[None]:
        """Measure requests for as long as somebody waits for them; ending: how they ended."""
        return self._requests.follow(submissions, self._subject.clock.now(), ending)

    def tell(self, listener: Listener) -> None:
        """Let somebody more hear of requests while they are measured."""
        self._requests.listeners.append(listener)

    def observe(self, outputs: Sequence[Output], stats: Stats) -> None:
        """Book one delivery of the engine."""
        for output in outputs:
            if output.tokens:
                self._requests.observe(output)
        if stats.counters.steps != self._stats.counters.steps:
            self.step_seconds.observe(stats.step_seconds)
            self.step_tokens.observe(stats.step_tokens)
            self.step_rows.observe(stats.step_rows)
        self._stats = stats

    @property
    def followed(self) -> int:
        """Sequences whose tokens are being measured."""
        return self._requests.followed

    @property
    def latencies(self) -> tuple[Histogram, Histogram]:
        """Times to the first token, and between tokens: as they are booked, for who reads along."""
        return self._requests.ttft, self._requests.itl

    def served(self, submission: Submission, last_token_at: float, tokens: Sequence[int]) -> None:
        """Book a request that was served in full; tokens: of each of its answers."""
        self._requests.served(submission, last_token_at, tokens)

    def count_http(
        self,
        route: str,
        method: str,
        status: int,
        *,
        error: str | None = None,
        left: bool = False,
        limit: str | None = None,
    ) -> None:
        """Book a request that is over under its route template.

        error: the code of the error that it ended with. left: whether its client did not wait.
        limit: of the configuration, which it would have exceeded.
        """
        self._http.count(route, method, status, error, left, limit)

    def render(self) -> bytes:
        """The whole page, in Prometheus's text format."""
        return generate_latest(self._registry) + "".join(self._histograms()).encode()

    # ---------------------------------------------------------------- rendering

    def collect(self) -> Iterable[Metric]:
        """Everything but the histograms, for the registry."""
        yield from self._about()
        yield from snapshot.families(self._stats, self._classes)
        yield snapshot.waits(self._subject.waits(), self._classes)
        yield from self._requests.families()
        yield from self._http.families()
        yield from experiment.families(self._subject.experiment())
        yield from shadow.families(self._subject.shadow())
        if self._config.vllm_names:
            yield from vllm.families(self._subject.model, self._stats, self._requests)

    def _histograms(self) -> Iterable[str]:
        """The lines of what the registry does not hold."""
        for histogram in self._requests.histograms():
            yield histogram.lines()
        for histogram in (self.step_seconds, self.step_tokens, self.step_rows):
            yield histogram.lines()
        if self._config.vllm_names:
            yield from vllm.histograms(self._subject.model, self._requests, self.step_tokens)

    def describe(self) -> Iterable[Metric]:
        """Nothing to check at registration: nobody else uses our names."""
        return ()

    def _about(self) -> Iterable[Metric]:
        subject = self._subject
        about = {
            "version": subject.version,
            "python": platform.python_version(),
            "backend": subject.backend,
            "model": subject.model,
        }
        build = GaugeMetricFamily("octavo_build_info", "What is served, always 1", labels=[*about])
        build.add_metric([*about.values()], 1)
        yield build
        policy = GaugeMetricFamily(
            "octavo_policy_info", "The policy in charge, always 1", labels=("policy",)
        )
        policy.add_metric((subject.policy(),), 1)
        yield policy
        yield GaugeMetricFamily(
            "octavo_engine_heartbeat_age_seconds",
            "Since the engine was last heard of, while requests are open; 0 while none are",
            value=self._requests.silence(subject.clock.now(), self._stats.now),
        )
