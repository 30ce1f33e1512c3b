"""What deploy/ holds, parsed, and what `/metrics` has for the expressions in it."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import yaml
from prometheus_client.parser import text_string_to_metric_families

from app.metrics import Metrics
from engine.controls import RowControls
from engine.inbox import Submission
from engine.outputs import Stats

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
DASHBOARD = DEPLOY / "grafana/dashboards/octavo.json"
ALERTS = DEPLOY / "prometheus/alerts.yml"
GRACE_S = 30.0
"""server.shutdown_grace_s where nothing else is said."""

SCRAPE_LABELS = {"instance", "job"}
"""What Prometheus itself puts on every series."""


def documents(path: str) -> list[dict[str, Any]]:
    """The documents of a YAML file of deploy/."""
    return [each for each in yaml.safe_load_all((DEPLOY / path).read_text()) if each]


def document(path: str) -> dict[str, Any]:
    """The only document of a YAML file of deploy/."""
    [only] = documents(path)
    return only


def rules() -> list[dict[str, Any]]:
    """The alert rules."""
    groups = yaml.safe_load(ALERTS.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def dashboard() -> dict[str, Any]:
    """The Grafana dashboard."""
    return dict(json.loads(DASHBOARD.read_text()))


def dashboard_expressions() -> list[str]:
    """PromQL of every panel and variable of the dashboard."""
    board = dashboard()
    panels = [target["expr"] for panel in board["panels"] for target in panel.get("targets", ())]
    variables = [each["definition"] for each in board["templating"]["list"] if "definition" in each]
    return panels + variables


def keda_expressions() -> list[str]:
    """PromQL of the triggers of the KEDA sample."""
    triggers = document("kubernetes/samples/keda.yaml")["spec"]["triggers"]
    return [trigger["metadata"]["query"] for trigger in triggers]


def series() -> dict[str, set[str]]:
    """Names of the samples that `/metrics` shows, with their labels."""
    metrics = Metrics()
    metrics.count_http("/health", "GET", 200)
    with metrics.follow([_with_targets()], lambda key: "stop"):
        metrics.observe([], Stats(running_by_class={"default": 1}, waiting_by_class={"default": 0}))
    shown: dict[str, set[str]] = defaultdict(set)
    for family in text_string_to_metric_families(metrics.render().decode()):
        for sample in family.samples:
            shown[sample.name] |= set(sample.labels)
    return dict(shown)


def _with_targets() -> Submission:
    """A request of somebody who was promised something."""
    controls = RowControls()
    return Submission(1, [1], 1, controls, 0.0, ttft_deadline=1.0, tpot_target=1.0)


def metric_names(expression: str) -> set[str]:
    """Metrics of ours, or of vLLM's, that a PromQL expression names."""
    return set(re.findall(r"\b(?:octavo_|vllm:)\w+", expression))


def selected_labels(expression: str) -> list[tuple[str, set[str]]]:
    """The labels that an expression selects by, for each of its selectors."""
    selectors = re.findall(r"((?:octavo_|vllm:)\w+)\{([^}]*)\}", expression)
    return [(name, set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", body))) for name, body in selectors]
