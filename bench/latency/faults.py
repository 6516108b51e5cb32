"""Faults of one bookie or of the disk. Each lasts as long as its block, and leaves a healthy cluster behind.

The value of the block is the time at which the fault began, in nanoseconds of the monotonic clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Final, TypeAlias

from ..equipment.bookies import RestartableBookie
from ..equipment.programs import Server, module

MemberFault: TypeAlias = Callable[[RestartableBookie], AbstractContextManager[int]]

START_SECONDS: Final = 30.0


def interrupted(stopped_seconds: float, running_seconds: float) -> MemberFault:
    """A bookie that is stopped and continued, again and again; its connections stay open."""

    @contextmanager
    def fault(bookie: RestartableBookie) -> Iterator[int]:
        options = {"pid": bookie.pid, "stopped-seconds": stopped_seconds, "running-seconds": running_seconds}
        with _beside(bookie, "tallybook.bench.loads.interruptions", options):
            yield time.monotonic_ns()

    return fault


@contextmanager
def no_fault(_bookie: RestartableBookie) -> Iterator[int]:
    """Nothing."""
    yield time.monotonic_ns()


@contextmanager
def killed(bookie: RestartableBookie) -> Iterator[int]:
    """A bookie that is killed, and started again after the block."""
    began_ns = time.monotonic_ns()
    bookie.kill()
    try:
        yield began_ns
    finally:
        bookie.start()
        bookie.ready()


@contextmanager
def busy_disk(bookie: RestartableBookie) -> Iterator[int]:
    """Another process that writes to the disk of a bookie, with an fsync after every few MiB."""
    with _beside(bookie, "tallybook.bench.loads.busy_disk", {"file": bookie.directory.parent / "busy"}):
        yield time.monotonic_ns()


@contextmanager
def _beside(bookie: RestartableBookie, program: str, options: Mapping[str, Path | float]) -> Iterator[None]:
    """Run a program beside the bookies."""
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    server = Server(module(program, *words), bookie.directory.parent / "beside.json")
    try:
        server.ready(START_SECONDS)
        yield
    finally:
        server.stop()
