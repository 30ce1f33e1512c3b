"""What can be configured of a live switchback experiment."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field

from app.config.section import Label, Name, Section

Period: TypeAlias = Annotated[float, Field(gt=0, le=86_400)]
MeasureName: TypeAlias = Literal[
    "ttft_s", "itl_s", "itl_p99_s", "output_tok_s", "attained", "failed"
]


class ArmConfig(Section):
    """An arm of an experiment: a policy as `scheduler` names one."""

    policy: Name = Field(default="fcfs", description="as scheduler.policy")
    params: dict[str, Any] = Field(default={}, description="as scheduler.params")


class StopConfig(Section):
    """When an experiment ends by itself, and its first arm stays in charge."""

    metric: MeasureName = Field(default="ttft_s", description="what an arm may not make worse")
    worse_by: Annotated[float, Field(gt=0)] | None = Field(
        default=0.5, description="relative change that it is surely worse by; null: never"
    )
    limit: Annotated[float, Field(gt=0)] | None = Field(
        default=None, description="its value in the period of any other arm; null: any"
    )


class ExperimentConfig(Section):
    """Policies that take turns on live traffic, to be compared (GET /admin/experiment)."""

    arms: dict[Label, ArmConfig] = Field(
        default={},
        description="policies by name, two at least; the first is what others are held to",
    )
    period_s: Period = Field(default=60.0, description="how long each is in charge at a time")
    washout_s: Annotated[float, Field(ge=0, le=86_400)] = Field(
        default=10.0, description="beginning of each period that does not count"
    )
    seed: int = Field(default=0, description="of the order in which arms take turns")
    level: Annotated[float, Field(gt=0.5, lt=1)] = Field(
        default=0.95, description="chance that the intervals hold the truth at all times"
    )
    most_blocks: Annotated[int, Field(ge=1, le=10_000)] = Field(
        default=1000, description="ends after each arm had so many periods"
    )
    stop: StopConfig = StopConfig()
