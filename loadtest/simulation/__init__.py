"""Requests through the real scheduler, guard and policy in virtual time."""

from loadtest.simulation.machine import Machine
from loadtest.simulation.records import NO_TARGETS, Record, Simulation, Targets
from loadtest.simulation.run import PolicyMaker, simulate

__all__ = ["NO_TARGETS", "Machine", "PolicyMaker", "Record", "Simulation", "Targets", "simulate"]
