"""Bookies that failed lately, which new ensembles avoid for a while.

A bookie in trouble often stays registered: it is slow, its disk fails, the way to it is cut.
Whoever chose it again at once would fail again. So it is avoided for a time that doubles each
time it fails again after it, up to a limit, and starts anew once it has kept out of trouble for
as long again. Acks do not shorten it: one that comes and goes acks in between. Failures
reported while it is avoided are of the same trouble, since one client may have many ledgers on
it, and count once.

Pure: whoever asks says what time it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tallybook.core.errors import (
    BookieReadOnly,
    BookieUnavailable,
    DamagedFile,
    DiskFailed,
    DiskFull,
    NoCommonVersion,
    RequestTimeout,
    TallybookError,
)

LONGEST_SECONDS: Final = 30 * 60.0
"""The limit, unless the first time is longer: by then somebody has looked at it, or it is not listed any more."""


@dataclass(frozen=True, slots=True)
class _Term:
    """One time of being avoided."""

    until: float
    seconds: float


_FAILURES: Final = (
    BookieUnavailable,
    RequestTimeout,
    BookieReadOnly,
    NoCommonVersion,
    DamagedFile,
    DiskFailed,
    DiskFull,
)


def is_its_failure(error: TallybookError) -> bool:
    """Whether ``error``, met on the way to a bookie or told by it, says that the bookie is in trouble.

    Not so where it is busy, or cannot tell of one ledger or entry, or where the metadata store does not answer.
    """
    return isinstance(error, _FAILURES)


class Quarantine:
    """Whom to avoid.

    Args:
        first_seconds: how long a bookie that failed once is avoided; 0 avoids nobody.
    """

    def __init__(self, first_seconds: float) -> None:
        self._first_seconds = first_seconds
        self._terms: dict[str, _Term] = {}

    def failed(self, bookie_id: str, now: float) -> None:
        """It failed at the monotonic second ``now``."""
        self._forget(now)
        before = self._terms.get(bookie_id)
        if before is None:
            seconds = self._first_seconds
        elif now < before.until:
            return
        else:
            seconds = min(2 * before.seconds, max(LONGEST_SECONDS, self._first_seconds))
        if seconds > 0:
            self._terms[bookie_id] = _Term(now + seconds, seconds)

    def now(self, now: float) -> frozenset[str]:
        """Whom to avoid at the monotonic second ``now``."""
        self._forget(now)
        return frozenset(bookie_id for bookie_id, term in self._terms.items() if now < term.until)

    def count(self, now: float) -> int:
        """How many that are. From any thread."""
        return sum(now < term.until for term in list(self._terms.values()))

    def _forget(self, now: float) -> None:
        """Drop those that kept out of trouble for as long as they were avoided."""
        self._terms = {name: term for name, term in self._terms.items() if now < term.until + term.seconds}
