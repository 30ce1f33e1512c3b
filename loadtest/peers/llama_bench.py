"""llama.cpp's own benchmark of several sequences at once, a process for each measurement."""

from __future__ import annotations

import json
from pathlib import Path

from loadtest.peers.processes import run
from loadtest.peers.work import PeerFailed, Times, Work

_TIMEOUT_S = 900.0


class LlamaBench:
    """One model file under `llama-batched-bench`, which feeds random tokens and does not sample."""

    def __init__(self, programs: Path, model: Path, threads: int) -> None:
        self._command = [programs / "llama-batched-bench", "-m", model, "-t", threads]

    def measure(self, work: Work, seed: int) -> Times:
        length = work.prompt + work.output
        shape = {"-npp": work.prompt, "-ntg": work.output, "-npl": work.sequences}
        sizes = [part for option in shape.items() for part in option]
        room = ["-c", work.sequences * length, "-b", "2048", "-ub", "512"]
        command = [*self._command, *sizes, *room, "--output-format", "jsonl"]
        return parse(run(command, timeout=_TIMEOUT_S), work)

    def close(self) -> None:
        """Nothing runs between measurements."""


def parse(output: str, work: Work) -> Times:
    """The times that `llama-batched-bench` printed for this work. Raises PeerFailed if it did not.

    It decodes `output` steps after the prompts; one less is as many tokens as others generate,
    whose first comes with the prompt.
    """
    for line in output.splitlines():
        if not line.startswith("{"):
            continue
        try:
            found = json.loads(line)
        except json.JSONDecodeError:
            continue
        if (found["pp"], found["tg"], found["pl"]) == (work.prompt, work.output, work.sequences):
            decode = found["t_tg"] * (work.output - 1) / work.output
            return Times(found["t_pp"], found["t_pp"] + decode)
    raise PeerFailed(f"llama-batched-bench reported nothing for {work.name}")
