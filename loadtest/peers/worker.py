"""An engine in a process of its own, that is told prompts and answers how long it took.

The process runs `drivers/serve_lines.py` under the Python of the engine's environment, so a driver
imports nothing of ours (but for our own engine's). A line of JSON goes in, one comes back.
"""

from __future__ import annotations

import json
import queue
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from loadtest.peers.processes import complaint, with_environment
from loadtest.peers.work import PeerFailed, Prompt, Times, Work

DRIVERS: Final = Path(__file__).parent / "drivers"
_LOAD_S: Final = 900.0
_MEASURE_S: Final = 900.0


class Worker:
    """A loaded driver. Its process is started, and ends with `close`.

    driver: a module in `drivers`; settings: what its `load` is given. log: the file that takes what
    the engine says. Raises PeerFailed if it does not load.
    """

    def __init__(
        self,
        python: str | Path,
        driver: str,
        settings: Mapping[str, Any],
        *,
        environment: Mapping[str, str],
        log: Path,
    ) -> None:
        self._name, self._log = driver, log
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as said:
            self._process = subprocess.Popen(
                [python, DRIVERS / "serve_lines.py", driver, json.dumps(settings)],
                env=with_environment(environment),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=said,
                text=True,
            )
        self._lines: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        try:
            self.vocab = int(self._reply(_LOAD_S)["vocab"])
            self._generate(Work(32, 4, 2).prompts(self.vocab, seed=0), 4)
        except PeerFailed:
            self.close()
            raise

    def measure(self, work: Work, seed: int) -> Times:
        first = self._generate(work.prompts(self.vocab, 2 * seed), 1)
        whole = self._generate(work.prompts(self.vocab, 2 * seed + 1), work.output)
        return Times(first, whole)

    def close(self) -> None:
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.close()
            process.wait(timeout=20)
        except (OSError, subprocess.TimeoutExpired):
            process.kill()
            process.wait()
        self._reader.join(timeout=20)  # it ends with the process, unless that left children behind
        if not self._reader.is_alive():
            process.stdout.close()

    def _generate(self, prompts: Sequence[Prompt], output: int) -> float:
        """Seconds in which all prompts got so many tokens."""
        assert self._process.stdin is not None
        try:
            print(json.dumps({"prompts": prompts, "output": output}), file=self._process.stdin)
            self._process.stdin.flush()
        except OSError:
            raise self._failure("has ended") from None
        return float(self._reply(_MEASURE_S)["seconds"])

    def _reply(self, timeout: float) -> Mapping[str, Any]:
        try:
            line = self._lines.get(timeout=timeout)
        except queue.Empty:
            raise self._failure(f"said nothing for {timeout:,.0f} s") from None
        if not line:
            raise self._failure("has ended")
        reply: Mapping[str, Any] = json.loads(line)
        return reply

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put("")

    def _failure(self, what: str) -> PeerFailed:
        said = self._log.read_text(errors="replace")
        return PeerFailed(f"{self._name} {what}: {complaint(said)}")
