"""The Grafana dashboard and Prometheus's rules speak of metrics that there are."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from support.deployment import (
    ALERTS,
    DEPLOY,
    SCRAPE_LABELS,
    dashboard,
    dashboard_expressions,
    document,
    keda_expressions,
    metric_names,
    rules,
    selected_labels,
    series,
)

SERIES = series()
ALERT_EXPRESSIONS = [rule["expr"] for rule in rules()]
EXPRESSIONS = [*dashboard_expressions(), *ALERT_EXPRESSIONS, *keda_expressions()]
CASES = Path(__file__).parent / "alert_cases.yaml"

PROMTOOL = shutil.which("promtool")
needs_promtool = pytest.mark.skipif(
    PROMTOOL is None, reason="promtool is not on PATH (Debian's package prometheus has it)"
)


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_every_metric_in_an_expression_exists(expression):
    names = metric_names(expression)
    assert names or "up{" in expression
    assert names <= set(SERIES)


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_every_label_that_is_selected_by_exists(expression):
    for name, labels in selected_labels(expression):
        assert labels <= SERIES[name] | SCRAPE_LABELS, name


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_only_counters_and_histograms_have_a_rate(expression):
    rated = re.findall(r"(?:rate|increase)\((\w+)", expression)
    assert all(name.endswith(("_total", "_bucket", "_sum", "_count")) for name in rated)


def test_a_name_that_does_not_exist_is_noticed():
    assert not metric_names("rate(octavo_typos_total[5m])") <= set(SERIES)


def test_panels_have_a_title_a_unit_and_a_place_of_their_own():
    panels = [panel for panel in dashboard()["panels"] if panel["type"] != "row"]
    assert all(panel["title"] and panel["fieldConfig"]["defaults"]["unit"] for panel in panels)
    places = [(p["gridPos"]["x"] + dx, p["gridPos"]["y"]) for p in panels for dx in (0, 5)]
    assert len(set(places)) == len(places)
    assert len({panel["id"] for panel in dashboard()["panels"]}) == len(dashboard()["panels"])


def test_panels_ask_the_chosen_data_source():
    sources = {
        target["datasource"]["uid"]
        for panel in dashboard()["panels"]
        for target in panel.get("targets", ())
    }
    assert sources == {"${datasource}"}


def test_alerts_say_how_bad_and_what():
    for rule in rules():
        assert rule["labels"]["severity"] in ("page", "ticket")
        assert rule["annotations"]["summary"]
    names = [rule["alert"] for rule in rules()]
    assert len(set(names)) == len(names)


def test_prometheus_loads_the_rules_and_names_the_job_that_they_look_for():
    settings = document("prometheus/prometheus.yml")
    assert [DEPLOY / "prometheus" / name for name in settings["rule_files"]] == [ALERTS]
    assert [job["job_name"] for job in settings["scrape_configs"]] == ["octavo"]
    assert any('job="octavo"' in expression for expression in ALERT_EXPRESSIONS)


@needs_promtool
def test_promtool_takes_the_configuration_and_its_rules():
    promtool("check", "config", str(DEPLOY / "prometheus/prometheus.yml"))


@needs_promtool
def test_alerts_fire_when_they_should_and_only_then(tmp_path):
    cases = {**yaml.safe_load(CASES.read_text()), "rule_files": [str(ALERTS)]}
    file = tmp_path / "cases.yaml"
    file.write_text(json.dumps(cases))
    promtool("test", "rules", str(file))


@needs_promtool
def test_expressions_of_dashboard_and_keda_are_promql(tmp_path):
    expressions = [
        each.replace("$__rate_interval", "1m")
        for each in (*dashboard_expressions(), *keda_expressions())
        if not each.startswith("label_values")
    ]
    recorded = [{"record": f"e{i}", "expr": each} for i, each in enumerate(expressions)]
    file = tmp_path / "rules.yaml"
    file.write_text(json.dumps({"groups": [{"name": "all", "rules": recorded}]}))
    promtool("check", "rules", "--lint=none", str(file))


def promtool(*arguments: str) -> None:
    """Run it to its end; it has to be content."""
    done = subprocess.run(
        [PROMTOOL or "promtool", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env=dict(os.environ),
    )
    assert done.returncode == 0, done.stdout + done.stderr
