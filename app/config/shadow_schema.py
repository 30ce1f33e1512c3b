"""What can be configured of shadow policies."""

from __future__ import annotations

from typing import Annotated, Any, Final

from pydantic import Field

from app.config.section import Label, Name, Section

IN_CHARGE: Final = "in_charge"
"""What the policy in charge is called beside its shadows."""


class ShadowPolicyConfig(Section):
    """A policy that is scored: a policy as `scheduler` names one."""

    policy: Name = Field(default="fcfs", description="as scheduler.policy")
    params: dict[str, Any] = Field(default={}, description="as scheduler.params")


class ShadowConfig(Section):
    """Policies that are scored beside live traffic, in virtual time (GET /admin/shadow)."""

    policies: dict[Label, ShadowPolicyConfig] = Field(
        default={},
        description="policies by name; what is in charge is scored with them; none: nothing is",
    )
    window_s: Annotated[float, Field(ge=1, le=86_400)] = Field(
        default=60.0, description="traffic that is scored at a time; simulations begin one earlier"
    )
    seeds: Annotated[int, Field(ge=1, le=100)] = Field(
        default=4, description="simulations that a score is the mean of"
    )
    trust_within: Annotated[float, Field(gt=0, le=10)] = Field(
        default=0.25, description="largest relative error at which scores are to be trusted"
    )
    level: Annotated[float, Field(gt=0.5, lt=1)] = Field(
        default=0.9, description="share of the windows whose error is to be within the stated one"
    )
    least_requests: Annotated[int, Field(ge=1)] = Field(
        default=20, description="windows with fewer requests are not scored"
    )
    most_requests: Annotated[int, Field(ge=1, le=1_000_000)] = Field(
        default=10_000, description="requests of two windows; if more come, they are not scored"
    )
    timeout_s: Annotated[float, Field(gt=0, le=86_400)] = Field(
        default=120.0, description="longest time that scoring one policy may take"
    )
    cost_factor: Annotated[float, Field(gt=0, le=1000)] = Field(
        default=1.0, description="falsifies the cost model: to see that its scores are not trusted"
    )
