"""Moments as a calendar has them: the years 1 to 9999.

Times in milliseconds come from clocks, files and peers, and have 64 bits. One that lies outside of the calendar was
made by a clock that was wrong, and is told as the nearest moment in it: it must not keep anybody from reading the rest.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
EARLIEST_MS: Final = (datetime.min.replace(tzinfo=UTC) - _EPOCH) // _MILLISECOND
LATEST_MS: Final = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // _MILLISECOND


def on_the_calendar(milliseconds: int) -> int:
    """The same time since the epoch, or the nearest that a calendar has."""
    return max(EARLIEST_MS, min(milliseconds, LATEST_MS))


def moment_of(milliseconds: int) -> datetime:
    """A time in milliseconds since the epoch, in UTC."""
    return _EPOCH + timedelta(milliseconds=on_the_calendar(milliseconds))
