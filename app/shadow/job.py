"""What the process that scores policies is asked."""

from __future__ import annotations

from dataclasses import dataclass

from app.config.schema import SchedulerConfig
from app.shadow.traffic import Stretch
from app.shadow.weather import CALM, Weather
from engine.simulation import Machine


@dataclass(frozen=True, slots=True)
class Job:
    """A policy, and the traffic that it is to be scored on, `seeds` times.

    weather: how slow the machine was at what time. slower: by what all seconds of the machine's
    cost are multiplied.
    """

    stretch: Stretch
    policy: SchedulerConfig
    machine: Machine
    seeds: int
    weather: Weather = CALM
    slower: float = 1.0
