"""Conversion of millisecond timestamps to calendar dates (years 1 to 9999).

Timestamps from clocks, files and peers have 64 bits. A value outside the calendar comes from a wrong clock and is
clamped to the nearest date, so that it does not stop the processing of other data.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
EARLIEST_MS: Final = (datetime.min.replace(tzinfo=UTC) - _EPOCH) // _MILLISECOND
LATEST_MS: Final = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // _MILLISECOND


def clamp_to_calendar(milliseconds: int) -> int:
    """The timestamp, clamped to the range of the calendar. Milliseconds since the epoch."""
    return max(EARLIEST_MS, min(milliseconds, LATEST_MS))


def utc_datetime(milliseconds: int) -> datetime:
    """The UTC datetime of a timestamp in milliseconds since the epoch."""
    return _EPOCH + timedelta(milliseconds=clamp_to_calendar(milliseconds))
