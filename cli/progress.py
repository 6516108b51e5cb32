"""A progress line on standard error: on a terminal updated a few times a second, elsewhere optional plain lines."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Protocol, TextIO

from tallybook.runtime.clock import Clock
from tallybook.runtime.tasks import Tasks

_PERIOD_SECONDS = 0.25
_PLAIN_SECONDS = 30.0
"""Seconds between two lines if there is no terminal."""


class ProgressSink(Protocol):
    """Gets the progress of some work."""

    def update(self, entries: int, size: int, seconds: float) -> None:
        """Report the entries and bytes done, and the seconds so far. Cheap to call often."""

    def end(self) -> None:
        """The work has ended."""


class Progress:
    """One line on standard error that is overwritten with each update.

    Args:
        title: what is being done.
        out: by default standard error.
        unit: what is counted, if not entries; then the rate shown is that of the bytes.
        plain: makes a line to print if ``out`` is not a terminal; ``None``: print nothing then.
    """

    def __init__(
        self,
        title: str,
        clock: Clock,
        out: TextIO | None = None,
        *,
        unit: str = "entries",
        plain: Callable[[], str] | None = None,
    ) -> None:
        self._title = title
        self._unit = unit
        self._clock = clock
        self._out = out or sys.stderr
        self._shown = self._out.isatty()
        self._plain = None if self._shown else plain
        self._next = clock.monotonic() + _PERIOD_SECONDS
        self._written = False

    def update(self, entries: int, size: int, seconds: float) -> None:
        """Show the progress, at most a few times a second."""
        if self._clock.monotonic() < self._next:
            return
        if self._plain is not None:
            self._next = self._clock.monotonic() + _PLAIN_SECONDS
            self._out.write(f"{self._plain()}\n")
            self._out.flush()
        if not self._shown:
            return
        self._next = self._clock.monotonic() + _PERIOD_SECONDS
        self._written = True
        rate = (entries if self._unit == "entries" else size) / max(seconds, 1e-9)
        shown = f"{rate:,.0f} entries/s" if self._unit == "entries" else f"{human_bytes(rate)}/s"
        self._out.write(f"\r\x1b[K{self._title}: {entries:,} {self._unit}, {human_bytes(size)}, {shown}")
        self._out.flush()

    def end(self) -> None:
        """Remove the line."""
        if self._written:
            self._out.write("\r\x1b[K")
            self._out.flush()
            self._written = False


@asynccontextmanager
async def show_progress(
    progress: Progress, clock: Clock, read_counts: Callable[[], tuple[int, int]]
) -> AsyncIterator[None]:
    """Poll and show the progress of the work in the block.

    Args:
        read_counts: returns the current count and bytes.
    """
    began, tasks = clock.monotonic(), Tasks("progress", lambda _name, _error: None)

    async def show() -> None:
        while True:
            await clock.sleep(_PERIOD_SECONDS)
            progress.update(*read_counts(), clock.monotonic() - began)

    tasks.spawn(show(), name="show")
    try:
        yield
    finally:
        await tasks.close()
        progress.end()


def human_bytes(size: float) -> str:
    """A size as text, in B, kB, MB, GB or TB (powers of 1000)."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"
