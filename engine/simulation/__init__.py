"""Requests through the real scheduler, guard and policy in virtual time."""

from engine.simulation.machine import Machine
from engine.simulation.records import NO_TARGETS, Record, Simulation, Targets
from engine.simulation.run import PolicyMaker, simulate

__all__ = ["NO_TARGETS", "Machine", "PolicyMaker", "Record", "Simulation", "Targets", "simulate"]
