"""What every built-in policy has: a name, words of its own, a row in README."""

import re
from functools import partial

import pytest
from support.built_in import BUILT_IN
from support.engines import Harness, services
from support.tree import ROOT

from app.config.schema import SchedulerConfig
from app.policy_loader import check_policy, load_policy
from engine.errors import ConfigurationError
from engine.step import StepProxy
from policies.base import Policy

README = (ROOT / "README.md").read_text()


@pytest.mark.parametrize("name", BUILT_IN)
def test_readme_has_a_row_that_names_its_parameters(name: str) -> None:
    table = README.split("\n## Policies\n")[1].split("\n## ")[0]
    (row,) = re.findall(rf"^\| `{name}` \|.*$", table, re.MULTILINE)
    kind, _ = check_policy(SchedulerConfig(policy=name))
    parameters = set(kind.__init__.__kwdefaults__ or ()) - {"services"}
    assert all(re.search(rf"`{parameter}\b", row) for parameter in parameters), parameters


@pytest.mark.parametrize("name", BUILT_IN)
def test_it_runs_with_its_defaults_and_says_in_its_own_words_why_a_request_waits(name: str) -> None:
    default = partial(load_policy, SchedulerConfig(policy=name))
    harness = Harness(policy=lambda services: default(services), rows=1)
    harness.submit(4, max_tokens=9)
    waiting = harness.submit(30, max_tokens=2)
    harness.step()
    request = harness.scheduler.request(waiting).view
    step = StepProxy(harness.scheduler.roster, 1, harness.clock.now())
    said = harness.policy.explain(request, step)
    assert said != Policy(services=services()).explain(request, step)
    assert len(said) > 20
    assert "\n" not in said
    harness.run()
    assert len(harness.tokens(waiting)) == 2


@pytest.mark.parametrize(
    ("name", "params", "complaint"),
    [
        ("fcfs", {"backfill": -1}, "backfill must not be negative"),
        ("decode-priority", {"tbt_s": 0}, "tbt_s must be a positive"),
        ("priority", {"ageing_s": -1}, "ageing_s must be"),
        ("shortest-first", {"tokens_per_s": 0}, "tokens_per_s must be positive"),
        ("fair-share", {"output_price": -1.0}, "output_price must be"),
        ("prefix-first", {"quantum": 0}, "quantum must be positive"),
        ("slo", {"late": "drop"}, "scheduler.params.late"),
        ("static-batch", {"size": 0}, "size must be at least 1"),
        ("static-batch", {"size": 2.5}, "scheduler.params.size"),
        ("priority", {"aging_s": 3}, "ageing_s"),
    ],
)
def test_a_wrong_parameter_is_a_start_up_error_that_names_it(name, params, complaint) -> None:
    with pytest.raises(ConfigurationError, match=complaint):
        load_policy(SchedulerConfig(policy=name, params=params), services())
