"""First come, first served."""

from __future__ import annotations

from policies.base import Policy


class FCFS(Policy):
    """Admit in order of arrival; a preempted request keeps its place.

    With mixed batches under one token budget this order is work-conserving, hence
    throughput-optimal (https://arxiv.org/abs/2504.07347). It promises nothing about latency: one
    long prompt delays everybody behind it.
    """
