"""Request traces: who arrived when, with how many tokens. No text, whatever the format."""

from loadtest.traces.arrival import Arrival, at_speed
from loadtest.traces.reader import TraceError, read_arrivals

__all__ = ["Arrival", "TraceError", "at_speed", "read_arrivals"]
