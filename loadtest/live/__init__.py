"""Open loop over HTTP: a trace is replayed against a server, and nobody's wait holds up the next.

run = replay_live("http://127.0.0.1:8000", arrivals)
run.records()       # as the simulation has them, latencies from when a request was due
report(run)         # the figures of `loadtest.metrics`, and what only a client sees
"""

from loadtest.live.records import LiveRecord, LiveRun
from loadtest.live.replay import LiveError, Settings, play, replay_live
from loadtest.live.report import report

__all__ = ["LiveError", "LiveRecord", "LiveRun", "Settings", "play", "replay_live", "report"]
