"""Quarantine: bookies that failed recently are avoided by new ensembles for a while. Pure; callers pass the time.

A failing bookie often stays registered: it is slow, its disk fails, its network is cut. So it is avoided for a time
that doubles with each further failure, up to a limit. The time starts anew once the bookie had no failure for as long
as it was last avoided. Acks do not shorten the quarantine: a flapping bookie acks in between. Failures during the
quarantine count as the same failure, since one client may have many ledgers on the bookie.
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
"""The limit, unless the first time is longer: by then an operator has acted, or the bookie is no longer registered."""


@dataclass(frozen=True, slots=True)
class _QuarantineTerm:
    """The end and the length of one quarantine."""

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
    """Whether ``error``, from a bookie or a connection to it, means that the bookie has failed.

    False for a busy bookie, for errors of one ledger or entry, and for errors of the metadata store.
    """
    return isinstance(error, _FAILURES)


class Quarantine:
    """The quarantined bookies of one client.

    Args:
        first_seconds: quarantine after a first failure; 0: no quarantine.
    """

    def __init__(self, first_seconds: float) -> None:
        self._first_seconds = first_seconds
        self._terms: dict[str, _QuarantineTerm] = {}

    def failed(self, bookie_id: str, now: float) -> None:
        """The bookie failed at the monotonic second ``now``."""
        self._forget(now)
        before = self._terms.get(bookie_id)
        if before is None:
            seconds = self._first_seconds
        elif now < before.until:
            return
        else:
            seconds = min(2 * before.seconds, max(LONGEST_SECONDS, self._first_seconds))
        if seconds > 0:
            self._terms[bookie_id] = _QuarantineTerm(now + seconds, seconds)

    def now(self, now: float) -> frozenset[str]:
        """The bookies to avoid at the monotonic second ``now``."""
        self._forget(now)
        return frozenset(bookie_id for bookie_id, term in self._terms.items() if now < term.until)

    def count(self, now: float) -> int:
        """The number of bookies to avoid. From any thread."""
        return sum(now < term.until for term in list(self._terms.values()))

    def _forget(self, now: float) -> None:
        """Drop bookies that had no failure for as long as they were last avoided."""
        self._terms = {name: term for name, term in self._terms.items() if now < term.until + term.seconds}
