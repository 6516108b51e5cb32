"""Reading from one of several replicas, as a pure state machine: which to ask next, and what to say in the end.

Any valid copy will do. Replicas are asked one after the other, the next one also while the one
before is slow (``pace``); a copy that fails its checks is reported and the next replica is
asked. If none has a good copy, the most serious answer wins, and ABSENT is the least: one
replica that cannot tell outweighs all that say it. A replica that lacks the entry on record is *doubtful*: it is asked
last, and only once all others have said that they have no good copy. ABSENT is never final at first: the
reader's metadata may be older than a repair, so they are read again once before the entry is
called missing; if they cannot be read, it is not. While every replica is BUSY nothing was
learnt: they are asked again after the longest pause named.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

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

_SERIOUSNESS: tuple[type[TallybookError], ...] = (
    NewerFormat,
    EntryCorrupt,
    EntryUnknown,
    StorageError,
    PeerError,
    OtherLedger,
    TallybookError,
)
"""Most serious first; ABSENT comes after all of them, although it is a ``StorageError``.

A copy that only a newer version can read is there, which has to be said whatever became of the others. A damaged copy
is worse than an unreachable one, which may still be good. Then comes that another ledger of this id is held. Last are
refusals, such as an internal error.
"""

_NO_COPY = (EntryAbsent, EntryCorrupt, OtherLedger)
"""Answers of replicas that have no good copy, and will have none but from others."""


@dataclass(slots=True)
class ReadAttempt:
    """One search for a good copy of an entry.

    Args:
        ledger_id, entry_id: for messages.
        replicas: bookie ids in the order to ask them.
        confirmed: whether the entry must be somewhere.
        doubtful: those that come last, and are believed only where no other one can have a copy.
    """

    ledger_id: int
    entry_id: int
    replicas: Sequence[str]
    confirmed: bool = True
    doubtful: Collection[str] = ()
    asked: int = 0
    """How many of them were asked."""
    errors: dict[str, TallybookError] = field(default_factory=dict)

    def next(self) -> str | None:
        """The replica to ask now; ``None`` when all were asked."""
        if self.all_asked:
            return None
        self.asked += 1
        return self.replicas[self.asked - 1]

    @property
    def all_asked(self) -> bool:
        """Whether there is no further replica to ask, as things stand."""
        if self.asked == len(self.replicas):
            return True
        return self.replicas[self.asked] in self.doubtful and not self._ruled_out

    @property
    def _ruled_out(self) -> bool:
        """Whether all that were asked have said that they have no good copy."""
        said = [error for error in self.errors.values() if isinstance(error, _NO_COPY)]
        return len(said) == self.asked

    def failed(self, bookie_id: str, error: TallybookError) -> None:
        """A replica had no good copy, or did not answer."""
        self.errors[bookie_id] = error

    @property
    def all_absent(self) -> bool:
        """Whether every replica says that it never had the entry."""
        return all(isinstance(error, EntryAbsent) for error in self.errors.values())

    @property
    def busy_pause_ms(self) -> int | None:
        """The longest pause that was named, if every replica said BUSY; else ``None``."""
        hints = [error.retry_after_ms for error in self.errors.values() if isinstance(error, Busy)]
        return max(hints) if hints and len(hints) == len(self.errors) else None

    def verdict(self) -> TallybookError:
        """The error to raise once every replica has failed."""
        told = ", ".join(f"{bookie_id} says {type(error).__name__}" for bookie_id, error in self.errors.items())
        what = f"ledger {self.ledger_id}, entry {self.entry_id}"
        if self.all_absent and not self.confirmed:
            return EntryAbsent(f"{what} is not there: {told}")
        if self.all_absent:
            return DataMissing(f"{what} was confirmed, but no replica has it: {told}")
        denied = [error for error in self.errors.values() if isinstance(error, AccessDenied | Unauthenticated)]
        if len(denied) == len(self.errors):
            return type(denied[0])(f"{what} is not for this client: {denied[0].message}")
        found = _retold(min(self.errors.values(), key=_rank), f"{what}: no replica has a good copy: {told}")
        found.settled = all(isinstance(error, EntryAbsent | EntryCorrupt) for error in self.errors.values())
        return found


def _rank(error: TallybookError) -> int:
    """Lower is more serious."""
    if isinstance(error, EntryAbsent):
        return len(_SERIOUSNESS)
    return next(rank for rank, kind in enumerate(_SERIOUSNESS) if isinstance(error, kind))


def _retold(error: TallybookError, message: str) -> TallybookError:
    if isinstance(error, Busy):
        return Busy(message, retry_after_ms=error.retry_after_ms)
    if isinstance(error, NewerFormat):
        return NewerFormat(f"{message}: {error.message}")
    if isinstance(error, PeerError | StorageError | OtherLedger):
        return type(error)(message)
    # Replicas that refuse say nothing of the entry, and one that knows of no such ledger nothing of the ledger.
    return EntryUnknown(f"{message}: {error.message}")


class FailedLately:
    """Bookies that did not answer a short while ago, or whose disk failed, and so are asked last.

    Without this memory every stripe of a range would wait once more for the same silent bookie.

    Args:
        expiry_s: how long a failure is held against a bookie.
    """

    def __init__(self, expiry_s: float) -> None:
        self._expiry_s = expiry_s
        self._until: dict[str, float] = {}

    def note(self, bookie_id: str, now: float) -> None:
        """It did not answer, or its disk failed."""
        self._until[bookie_id] = now + self._expiry_s

    def forgive(self, bookie_id: str) -> None:
        """It answered."""
        self._until.pop(bookie_id, None)

    def now(self, now: float) -> set[str]:
        """Whom a failure is still held against."""
        self._until = {bookie_id: until for bookie_id, until in self._until.items() if until > now}
        return set(self._until)


def replica_order(write_set: Sequence[str], preferred: str | None, failed: Collection[str] = ()) -> list[str]:
    """Bookies of a write set in the order to ask them: the one that served last, others, those that failed lately."""
    return sorted(write_set, key=lambda bookie_id: (bookie_id in failed, bookie_id != preferred))
