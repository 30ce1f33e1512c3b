"""What Prometheus reads: the engine's latest snapshot, and what was seen on the event loop."""

from app.metrics.collector import CONTENT_TYPE, Metrics, Subject
from app.metrics.http import UNMATCHED

__all__ = ["CONTENT_TYPE", "UNMATCHED", "Metrics", "Subject"]
