"""Shadows that cannot be scored, or would not be told apart, are refused at the start."""

import pytest

from app.config import load_config
from engine.errors import ConfigurationError


def refused(*overrides: str) -> str:
    with pytest.raises(ConfigurationError) as caught:
        load_config(None, overrides=overrides)
    return str(caught.value)


def test_none_are_scored_unless_they_are_named():
    assert load_config(None).shadow.policies == {}


def test_a_shadow_has_to_be_a_policy_that_can_be_made():
    said = refused("shadow.policies.other={policy: fair-shar}")
    assert "shadow.policies.other.policy: unknown policy fair-shar" in said
    said = refused("shadow.policies.other={policy: fair-share, params: {speed: 1}}")
    assert "shadow.policies.other.params.speed: unknown parameter" in said


def test_an_experiment_and_shadows_do_not_go_together():
    arms = "experiment.arms={a: {policy: fcfs}, b: {policy: fair-share}}"
    said = refused(arms, "shadow.policies.other={policy: slo}")
    assert "shadow.policies: cannot be had with experiment.arms" in said


def test_what_is_in_charge_keeps_its_name():
    said = refused("shadow.policies.in_charge={policy: slo}")
    assert "shadow.policies.in_charge: is what the policy in charge is called" in said


def test_a_window_has_to_have_room_for_the_fewest_that_are_scored():
    said = refused("shadow.least_requests=50", "shadow.most_requests=10")
    assert "shadow.least_requests: 50 are more than shadow.most_requests = 10" in said


def test_windows_are_no_shorter_than_a_second():
    assert "shadow.window_s: must be at least 1, got 0.01" in refused("shadow.window_s=0.01")
