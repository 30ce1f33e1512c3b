"""The process that scores policies: a policy may run for ever, or take all memory there is.

It reads jobs from its standard input and answers each on its standard output:

    ◀─ (nothing)                  ready ─▶
    ◀─ a Job, pickled             {"scores": of each simulation, "faults": of the policy} ─▶
                                  {"fault": why there are none} ─▶

It runs when nobody else wants to, and ends with its input. Started by `app.shadow.scorer`; imports
nothing that is large.
"""

from __future__ import annotations

import pickle
import sys
from dataclasses import asdict, replace
from typing import Any, Final

import orjson

from app.child.bounds import answers_only, end_with, limit_memory, limit_time
from app.child.frames import READY, read_frame, write_frame
from app.policy_loader import ConfiguredPolicy, under
from app.problems import BadConfiguration
from app.shadow.job import Job
from app.shadow.playing import play

MOST_MEMORY: Final = 1024 * 2**20
"""Bytes that a job may take, beyond what the process has before the first."""

MOST_CPU_S: Final = 900
"""CPU time of a job, should nobody be there any more to look at the clock."""


def main() -> None:
    """Answer until there is nothing more to read."""
    answers = answers_only()
    requests = sys.stdin.buffer
    if read_frame(requests) is None:
        return
    end_with(requests)
    limit_memory(MOST_MEMORY)
    write_frame(answers, READY)
    while (request := read_frame(requests)) is not None:
        limit_time(MOST_CPU_S)
        write_frame(answers, orjson.dumps(score(pickle.loads(request))))


def score(job: Job) -> dict[str, Any]:
    """What a job comes to. Whatever a policy raises is its own fault, and told."""
    machine = replace(job.machine, cost=job.machine.cost.times(job.slower))
    try:
        played = [
            play(job.stretch, ConfiguredPolicy(job.policy), machine, seed, job.weather)
            for seed in range(job.seeds)
        ]
    except MemoryError:
        return {"fault": "takes more memory than is possible here"}
    except BadConfiguration as error:
        return {"fault": str(under("", error))}
    except Exception as error:
        return {"fault": f"{type(error).__name__}: {error}"}
    return {
        "scores": [asdict(each.score) for each in played],
        "faults": sum(each.faults for each in played),
    }


if __name__ == "__main__":
    main()
