"""Helpers for tests of blocking clients and streams: records to write, reads, and waits."""

import contextlib
import time
from collections.abc import Callable
from typing import Any

from tallybook.core.errors import Busy
from tallybook.stream.sync import Position, StreamStore

PATIENCE = 20.0
"""Seconds, for what takes milliseconds unless it is broken."""


def lines(first: int, count: int) -> list[bytes]:
    """So many payloads, numbered."""
    return [b"%d" % number for number in range(first, first + count)]


def written(streams: StreamStore, count: int, **policy: object) -> list[Position]:
    """A stream ``s`` of that many records, each in an envelope of its own; where they are."""
    streams.create("s", **policy)
    with streams.writer("s") as writer:
        return [position for line in lines(0, count) for position in writer.append_set([line])]


def payloads(streams: StreamStore, **how: Any) -> list[bytes]:
    """The records of stream ``s``."""
    return [record.payload for record in streams.reader("s", follow=False, **how)]


def filled(writer: Any) -> list[Any]:
    """Append until the budget is used up."""
    pending: list[Any] = []
    with contextlib.suppress(Busy):
        while True:
            pending.append(writer.append_nowait(bytes(500)))
    return pending


def wait_until(condition: Callable[[], bool]) -> None:
    """Return when ``condition`` holds; fail if it never does."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it never held"
        time.sleep(0.005)
