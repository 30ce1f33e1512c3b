"""Several processes that share one model: which of them this is, and what it does in its place."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import click
import structlog

from app.computing import cuda_settings, offload_memory
from app.config import Config
from app.problems import BadConfiguration, Problem, naming_the_key
from engine.backends import CudaSettings, LoadedModel, Progress, follow, lead
from engine.backends.choice import CUDA, Choice
from engine.backends.parallel.followers import Followers
from engine.backends.parallel.place import Place
from engine.backends.parallel.wanted import Wanted
from engine.errors import CollectiveFailed, GroupLost

log = structlog.stdlib.get_logger("octavo")

ENDS_WITHIN_S = 10.0
"""How long rank 0 may take to end once another rank is lost."""

ENDING = (signal.SIGINT, signal.SIGTERM)


class RanksLost(click.ClickException):
    """The others are gone: one message, exit code 1."""


def place_of(config: Config, environment: Mapping[str, str] = os.environ) -> Place:
    """Which process this is, as torchrun says in the environment.

    Raises ConfigurationError unless there are `engine.tensor_parallel` of them.
    """
    place, wanted = Place.of(environment), config.engine.tensor_parallel
    if place.world != wanted:
        raise BadConfiguration(Problem("engine.tensor_parallel", _disagreement(wanted, place)))
    return place


def _disagreement(wanted: int, place: Place) -> str:
    if place.world > 1:
        return f"{wanted}, but there are {place.world} processes (WORLD_SIZE)"
    command = f"torchrun --standalone --nproc-per-node {wanted} --no-python octavo serve ..."
    return f"{wanted} processes have to be started together: {command}"


def lead_ranks(
    config: Config,
    path: Path,
    cuda: CudaSettings | None = None,
    progress: Progress | None = None,
) -> LoadedModel:
    """Load the model at `path` together with all other ranks, which follow from then on.

    cuda: None where they compute on CPUs. progress: hears of the graphs that are captured. Raises
    ConfigurationError, and RanksLost if one of them ends.
    """
    place = place_of(config)
    if place.rank:
        raise BadConfiguration(Problem("engine.tensor_parallel", "only octavo serve has followers"))
    log.info("waiting for the other ranks", ranks=place.world)
    with _starting():
        return lead(place, _wanted(config, path), cuda, progress)


@contextmanager
def leading(followers: Followers | None, end: Callable[[], None]) -> Iterator[None]:
    """Within the `with`, `end` is called if one of the others ends, or is told to.

    Raises RanksLost behind it if this was the end of all.
    """
    if followers is None:
        yield
        return

    def one_leaves() -> None:
        end()
        if followers.lost:
            end_anyway = threading.Timer(ENDS_WITHIN_S, _end_at_once, [followers])
            end_anyway.daemon = True
            end_anyway.start()

    followers.when_one_leaves(one_leaves)
    yield
    if lost := followers.lost:
        raise RanksLost(f"{lost}; that has ended all ranks")


def _end_at_once(followers: Followers) -> None:
    """Somebody waits for the rank that is gone: a GPU, say, which nobody can interrupt."""
    log.error("ended without waiting any longer", lost=str(followers.lost))
    os._exit(1)


def follow_rank_0(config: Config, choice: Choice, place: Place, path: Path | None) -> None:
    """Compute what rank 0 computes, until it ends. Opens no port.

    config: settled, with this choice.
    SIGINT and SIGTERM end all ranks, by way of rank 0; the third ends this process at once. Raises
    ConfigurationError, and RanksLost if rank 0 ends otherwise.
    """
    assert path is not None, "a simulated model has no ranks"
    log.info("following rank 0; no port is opened", rank=place.rank, ranks=place.world)
    with _starting():
        cuda = cuda_settings(config, choice) if choice.backend == CUDA else None
        follower = follow(place, _wanted(config, path), cuda)
    log.info("ready to follow", rank=place.rank, kv_blocks=follower.blocks)
    left = [3]

    def ask(number: int, frame: FrameType | None) -> None:
        left[0] -= 1
        if not left[0]:
            os._exit(128 + number)
        follower.ask_to_stop()

    for each in ENDING:
        signal.signal(each, ask)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # rank 0 reads the configuration again
    with _lost_means_the_end():
        follower.follow()
    log.info("rank 0 has ended, and so has this", rank=place.rank)


def _wanted(config: Config, path: Path) -> Wanted:
    """What all ranks are to load, of a configuration that is settled."""
    engine = config.engine
    return Wanted(
        path,
        kv_dtype=engine.kv_dtype,
        kv_memory_bytes=None if engine.kv_memory == "auto" else engine.kv_memory,
        offload_memory_bytes=offload_memory(config),
        threads=engine.threads,
        timeout_s=engine.rank_timeout_s,
    )


@contextmanager
def _starting() -> Iterator[None]:
    """Say what goes wrong by its knob. Ctrl-C ends the process at once: torch waits for others
    without looking at Python's signals."""
    main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGINT, signal.SIG_DFL) if main else None
    try:
        with _lost_means_the_end(), naming_the_key("model.path"):
            yield
    finally:
        if before is not None:
            signal.signal(signal.SIGINT, before)


@contextmanager
def _lost_means_the_end() -> Iterator[None]:
    try:
        yield
    except (GroupLost, CollectiveFailed) as error:
        raise RanksLost(str(error)) from error
