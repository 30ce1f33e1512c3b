"""Request traces: who arrived when, with how many tokens. No text, whatever the format."""

from engine.simulation.arrival import Arrival, Prefix
from loadtest.traces.reader import Trace, TraceError, read_arrivals, read_trace
from loadtest.traces.timing import at_rate, at_speed, drawn, rate_of, spread

__all__ = [
    "Arrival",
    "Prefix",
    "Trace",
    "TraceError",
    "at_rate",
    "at_speed",
    "drawn",
    "rate_of",
    "read_arrivals",
    "read_trace",
    "spread",
]
