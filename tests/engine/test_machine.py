"""This machine as a device. What is measured depends on the machine; that it is there does not."""

from engine.backends.memory import usable_memory
from engine.machine import this_machine


def test_this_machine_has_its_memory_and_rates_that_say_they_are_measured() -> None:
    device = this_machine()
    assert device.memory_bytes == usable_memory()
    assert device.measured
    # Three decades below and above any processor there is.
    assert 1e7 < device.bytes_per_s < 1e15
    assert 1e7 < device.flops_per_s < 1e18
