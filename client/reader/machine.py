"""Reading an entry from its replicas, as a pure state machine: which replica to ask next, and which error to raise.

- Any valid copy is good. Replicas are asked one after another; the next one also while the current one is slow
  (``SpeculationPolicy``). A damaged copy is reported, and the next replica is asked.
- If none has a good copy, the most serious error is raised. ABSENT is the least serious: one UNKNOWN outweighs it.
- A replica with a missed range for the entry is *doubtful*: asked last, and only after all others have said that they
  have no good copy.
- ABSENT is not final at first: the metadata may be older than a repair, so they are read again once before the entry is
  reported missing. If they cannot be read, it is not reported missing.
- While every replica is BUSY, they are asked again after the longest pause that they name.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Final

from tallybook.core.errors import (
    AccessDenied,
    Busy,
    DataMissing,
    EntryAbsent,
    EntryCorrupt,
    EntryUnknown,
    NewerFormat,
    OtherLedger,
    PeerError,
    StorageError,
    TallybookError,
    Unauthenticated,
)

from ..refusals import listed

_SEVERITY: tuple[type[TallybookError], ...] = (
    NewerFormat,
    EntryCorrupt,
    EntryUnknown,
    StorageError,
    PeerError,
    OtherLedger,
    TallybookError,
)
"""Most serious first; ABSENT comes after all of them, although it is a ``StorageError``.

``NewerFormat`` is first: the copy exists, but needs a newer version. A damaged copy is worse than an unreachable one,
which may still be good. Then comes another ledger with this id. Last are refusals, such as an internal error.
"""

_NO_COPY = (EntryAbsent, EntryCorrupt, OtherLedger)
"""Answers that prove that a replica has no good copy."""

REMEMBERED_ANSWERS: Final = 64
"""Number of recent answers that count towards the speculation delay."""

RENEWED_AFTER: Final = 8
"""Answers after which the speculation delay is computed again."""

MAX_WAIT_SECONDS: Final = 1.0
"""Longest speculation delay, also used while too few answers are known; unless the configured minimum is longer."""


@dataclass(slots=True)
class ReadAttempt:
    """One search for a good copy of an entry.

    Args:
        ledger_id, entry_id: for messages.
        replicas: bookie ids in the order to ask them.
        confirmed: whether the entry is confirmed, so that a copy must exist.
        doubtful: replicas that come last, and are asked only if no other one has a copy.
    """

    ledger_id: int
    entry_id: int
    replicas: Sequence[str]
    confirmed: bool = True
    doubtful: Collection[str] = ()
    asked: int = 0
    """Number of replicas asked so far."""
    errors: dict[str, TallybookError] = field(default_factory=dict)

    def next(self) -> str | None:
        """The replica to ask now; ``None`` when all were asked."""
        if self.all_asked:
            return None
        self.asked += 1
        return self.replicas[self.asked - 1]

    @property
    def all_asked(self) -> bool:
        """Whether there is no further replica to ask now."""
        if self.asked == len(self.replicas):
            return True
        return self.replicas[self.asked] in self.doubtful and not self._ruled_out

    @property
    def _ruled_out(self) -> bool:
        """Whether all replicas asked so far have proved that they have no good copy."""
        proved = [error for error in self.errors.values() if isinstance(error, _NO_COPY)]
        return len(proved) == self.asked

    def failed(self, bookie_id: str, error: TallybookError) -> None:
        """A replica had no good copy, or did not answer."""
        self.errors[bookie_id] = error

    @property
    def all_absent(self) -> bool:
        """Whether every replica answered ABSENT: it never had the entry."""
        return all(isinstance(error, EntryAbsent) for error in self.errors.values())

    @property
    def busy_pause_ms(self) -> int | None:
        """The longest pause named, if every replica answered BUSY; else ``None``."""
        hints = [error.retry_after_ms for error in self.errors.values() if isinstance(error, Busy)]
        return max(hints) if hints and len(hints) == len(self.errors) else None

    def verdict(self) -> TallybookError:
        """The error to raise once every replica has failed."""
        answers = listed({bookie_id: type(error).__name__ for bookie_id, error in self.errors.items()})
        what = f"ledger {self.ledger_id}, entry {self.entry_id}"
        if self.all_absent and not self.confirmed:
            return EntryAbsent(f"{what} is not there: {answers}")
        if self.all_absent:
            return DataMissing(f"{what} was confirmed, but no replica has it: {answers}")
        denied = [error for error in self.errors.values() if isinstance(error, AccessDenied | Unauthenticated)]
        if len(denied) == len(self.errors):
            return type(denied[0])(f"{what}: access denied: {denied[0].message}")
        found = _with_message(min(self.errors.values(), key=_rank), f"{what}: no replica has a good copy: {answers}")
        found.settled = all(isinstance(error, EntryAbsent | EntryCorrupt) for error in self.errors.values())
        return found


def _rank(error: TallybookError) -> int:
    """Lower is more serious."""
    if isinstance(error, EntryAbsent):
        return len(_SEVERITY)
    return next(rank for rank, kind in enumerate(_SEVERITY) if isinstance(error, kind))


def _with_message(error: TallybookError, message: str) -> TallybookError:
    if isinstance(error, Busy):
        return Busy(message, retry_after_ms=error.retry_after_ms)
    if isinstance(error, NewerFormat):
        return NewerFormat(f"{message}: {error.message}")
    if isinstance(error, PeerError | StorageError | OtherLedger):
        return type(error)(message)
    # A refusal proves nothing about the entry, nor does "no such ledger" of one bookie about the ledger.
    return EntryUnknown(f"{message}: {error.message}")


class RecentFailures:
    """Bookies that recently did not answer, or whose disk failed; they are asked last.

    Without it, every stripe of a range would wait again for the same silent bookie.

    Args:
        expiry_s: how long a failure counts.
    """

    def __init__(self, expiry_s: float) -> None:
        self._expiry_s = expiry_s
        self._until: dict[str, float] = {}

    def note(self, bookie_id: str, now: float) -> None:
        """A bookie did not answer, or its disk failed."""
        self._until[bookie_id] = now + self._expiry_s

    def forgive(self, bookie_id: str) -> None:
        """A bookie answered."""
        self._until.pop(bookie_id, None)

    def now(self, now: float) -> set[str]:
        """Bookies whose failure still counts."""
        self._until = {bookie_id: until for bookie_id, until in self._until.items() if until > now}
        return set(self._until)


def replica_order(write_set: Sequence[str], preferred: str | None, failed: Collection[str] = ()) -> list[str]:
    """Bookies of a write set in the order to ask them: the one that served last, others, recently failed ones."""
    return sorted(write_set, key=lambda bookie_id: (bookie_id in failed, bookie_id != preferred))


class SpeculationPolicy:
    """The speculation delay of one handle: how long to wait for a replica before another one is asked as well.

    A replica that hangs, or waits for its disk, need not delay a reader that has other replicas. But a second request
    costs work, so it is sent only after the 95th percentile of recent answer times. If all replicas become slow, the
    delay grows with them.

    Args:
        min_seconds: minimum delay; 0: no speculative reads.
    """

    def __init__(self, min_seconds: float) -> None:
        self._min_seconds = min_seconds
        self._max_seconds = max(MAX_WAIT_SECONDS, min_seconds)
        self._answers: deque[float] = deque(maxlen=REMEMBERED_ANSWERS)
        self._until_renewed = RENEWED_AFTER
        self._wait_seconds = self._max_seconds

    @property
    def speculates(self) -> bool:
        """Whether speculative reads are on."""
        return self._min_seconds > 0

    @property
    def wait_seconds(self) -> float:
        """The delay before the next replica is asked."""
        return self._wait_seconds

    def answered(self, seconds: float) -> None:
        """An answer took ``seconds``."""
        self._answers.append(seconds)
        self._until_renewed -= 1
        if self._until_renewed == 0:
            self._until_renewed = RENEWED_AFTER
            slow = sorted(self._answers)[len(self._answers) * 95 // 100]
            self._wait_seconds = min(max(slow, self._min_seconds), self._max_seconds)
