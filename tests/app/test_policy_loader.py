"""From a policy's name and parameters to the policy."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest
from support.policy_samples import Inheriting, Sample

from app.config.schema import SchedulerConfig
from app.policy_loader import check_policy, load_policy
from engine.errors import ConfigurationError
from policies.base import Services
from policies.fcfs import FCFS

SAMPLES = "support.policy_samples"


class NoCost:
    """A cost model that knows nothing."""

    relative_error = 0.0
    epoch = 0

    def seconds(self, prefill: int, decodes: int, kv_read: int, chunk_context: int) -> float:
        return 0.0


def services() -> Services:
    return Services(cost=NoCost(), rng=random.Random(0))


def refusal(policy: str, **params: object) -> str:
    with pytest.raises(ConfigurationError) as caught:
        load_policy(SchedulerConfig(policy=policy, params=params), services())
    return str(caught.value)


def test_a_short_name_is_an_installed_entry_point() -> None:
    given = services()
    policy = load_policy(SchedulerConfig(policy="fcfs"), given)
    assert type(policy) is FCFS
    assert policy.services is given


def test_a_dotted_path_names_any_importable_policy() -> None:
    policy = load_policy(SchedulerConfig(policy=f"{SAMPLES}:Sample"), services())
    assert isinstance(policy, Sample)
    assert policy.given == (8, 1.0, (), None, "oldest")


def test_parameters_arrive_as_the_annotations_want_them() -> None:
    params = {"window": 3, "factor": 2, "classes": ["a", "b"], "weights": {"t": 1}}
    policy = load_policy(SchedulerConfig(policy=f"{SAMPLES}:Sample", params=params), services())
    assert isinstance(policy, Sample)
    assert policy.given == (3, 2.0, ("a", "b"), {"t": 1.0}, "oldest")


def test_parameters_that_are_handed_on_are_checked_against_the_parent() -> None:
    scheduler = SchedulerConfig(policy=f"{SAMPLES}:Inheriting", params={"extra": True, "window": 2})
    policy = load_policy(scheduler, services())
    assert isinstance(policy, Inheriting)
    assert policy.extra
    assert policy.given[0] == 2
    assert "did you mean window?" in refusal(f"{SAMPLES}:Inheriting", windw=1)


def test_a_constructor_may_take_whatever_it_is_given() -> None:
    policy = load_policy(SchedulerConfig(policy=f"{SAMPLES}:Open"), services())
    assert isinstance(policy, Sample)
    assert "did you mean window?" in refusal(f"{SAMPLES}:Open", windw=1)


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    assert refusal("fcsf") == "scheduler.policy: unknown policy fcsf; did you mean fcfs?"


def test_a_name_like_no_other_is_answered_with_the_known_ones() -> None:
    assert "known policies: " in refusal("zzzzzzzz")


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("no_such_package.x:Y", "ModuleNotFoundError: No module named 'no_such_package'"),
        (f"{SAMPLES}:Sampel", f"{SAMPLES} has no Sampel; did you mean Sample?"),
        (f"{SAMPLES}:NotAPolicy", "is not a subclass of policies.base.Policy"),
        (f"{SAMPLES}:", "has no ; known policies"),
        (":Sample", "cannot import"),
    ],
)
def test_a_path_that_leads_to_no_policy_is_refused(target: str, expected: str) -> None:
    message = refusal(target)
    assert message.startswith("scheduler.policy: ")
    assert expected in message
    assert "\n" not in message


def test_a_module_that_fails_to_import_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "failing_policy.py").write_text("raise OSError('no\\ndisk')", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    assert refusal("failing_policy:X").startswith(
        "scheduler.policy: cannot import failing_policy (OSError: no disk)"
    )


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({"windw": 1}, "windw: unknown parameter; did you mean window?"),
        ({"services": 1}, "services: unknown parameter"),
        ({"window": "8"}, 'window: expected an integer, got "8"; drop the quotes'),
        ({"window": True}, "window: expected an integer, got true"),
        ({"window": 1.5}, "window: expected an integer, got 1.5"),
        (
            {"order": "odlest"},
            'order: expected oldest or newest; got "odlest"; did you mean oldest',
        ),
        ({"weights": {"a": "heavy"}}, 'weights: expected a number, got "heavy"'),
    ],
)
def test_a_wrong_parameter_is_named(params: dict[str, object], expected: str) -> None:
    assert refusal(f"{SAMPLES}:Sample", **params).startswith(f"scheduler.params.{expected}")


def test_a_missing_parameter_is_named() -> None:
    expected = f"scheduler.params.quota: policy {SAMPLES}:Needy needs a value here"
    assert refusal(f"{SAMPLES}:Needy") == expected


def test_a_parameter_that_yaml_cannot_give_is_named() -> None:
    message = refusal(f"{SAMPLES}:Unwritable", other="fcfs")
    assert message.startswith("scheduler.params.other: YAML has no values of type ")


def test_a_constructor_that_fails_is_not_blamed_on_the_parameters() -> None:
    expected = f"scheduler.policy: {SAMPLES}:Unmakeable cannot be made: TypeError: "
    assert refusal(f"{SAMPLES}:Unmakeable").startswith(expected)


def test_what_the_constructor_refuses_is_a_configuration_error() -> None:
    expected = (
        f"scheduler.params: policy {SAMPLES}:Sample refuses them:"
        " window must not be negative, got -1"
    )
    assert refusal(f"{SAMPLES}:Sample", window=-1) == expected


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("Exiting", f"scheduler.policy: {SAMPLES}:Exiting cannot be made: SystemExit: 3"),
        ("Unspeakable", f"scheduler.policy: {SAMPLES}:Unspeakable cannot be made: _Mute"),
        (
            "Impostor",
            f"scheduler.policy: {SAMPLES}:Impostor made something else than a policy",
        ),
        ("Unannotated", "scheduler.policy: cannot resolve the annotations of Unannotated.__init__"),
    ],
)
def test_whatever_a_plug_in_does_is_a_configuration_error(policy: str, expected: str) -> None:
    assert refusal(f"{SAMPLES}:{policy}").startswith(expected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("import sys; sys.exit(3)", "cannot import odd_plug_in (SystemExit: 3)"),
        ("class E(Exception): __str__ = None\nraise E", "cannot import odd_plug_in (E)"),
        ("def __getattr__(name): raise OSError('no')", "cannot find odd_plug_in:X (OSError: no)"),
    ],
)
def test_whatever_its_module_does_is_one_too(text, expected, tmp_path, monkeypatch) -> None:
    (tmp_path / "odd_plug_in.py").write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "odd_plug_in", raising=False)
    assert refusal("odd_plug_in:X").startswith(f"scheduler.policy: {expected}")


@pytest.mark.parametrize("depth", [100, 250, 900])
def test_a_value_that_is_nested_too_deeply_is_named(depth: int) -> None:
    value: object = 1
    for _ in range(depth):
        value = {"a": value}
    assert refusal(f"{SAMPLES}:Sample", weights=value).startswith("scheduler.params.weights")


def test_checking_makes_no_policy() -> None:
    scheduler = SchedulerConfig(policy=f"{SAMPLES}:Sample", params={"window": -1})
    assert check_policy(scheduler) == (Sample, {"window": -1})
