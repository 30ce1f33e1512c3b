"""Running the commands of others: one line says what went wrong."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from loadtest.peers.work import PeerFailed

Command = Sequence[object]
"""A program and its arguments, paths and numbers among them."""


def run(command: Command, *, timeout: float, environment: Mapping[str, str] | None = None) -> str:
    """Run to the end; what it printed on stdout. Raises PeerFailed with its last line if it fails
    or takes longer than `timeout` seconds."""
    try:
        done = subprocess.run(
            arguments(command),
            env=with_environment(environment or {}),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise PeerFailed(f"{program(command)} took more than {timeout:,.0f} s") from None
    except OSError as error:
        raise PeerFailed(f"{program(command)}: {error.strerror or error}") from error
    if done.returncode < 0:
        raise PeerFailed(f"{program(command)} was ended by signal {-done.returncode}")
    if done.returncode > 0:
        raise PeerFailed(f"{program(command)} failed: {complaint(done.stderr or done.stdout)}")
    return done.stdout


def arguments(command: Command) -> list[str]:
    """As the operating system takes them."""
    return [str(part) for part in command]


def with_environment(added: Mapping[str, str]) -> dict[str, str]:
    """This process's environment and more."""
    return {**os.environ, **added}


def program(command: Command) -> str:
    """What to call a command in a message."""
    return Path(str(command[0])).name


def complaint(text: str) -> str:
    """The line of an output that most likely says what is wrong: the last one that names an error,
    or the last one."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    named = [line for line in lines if "error" in line.lower()]
    return (named or lines or ["it gave no reason"])[-1][:300]
