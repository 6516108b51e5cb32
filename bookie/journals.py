"""The journals of a bookie: one or several, each in a directory of its own, best on disks of their own.

Every ledger belongs to one of them, by a hash of its id. So all that is said about a ledger (its
adds, its fence, its deletion) stands in one journal in the order in which it was decided, and the
journals need not agree on anything: each has its own group commits, its own blocks, its own mark. A
checkpoint takes the marks of all of them in the turn in which it swaps the write cache, and after it
each journal forgets what lies below its own mark. Between any two of these steps a crash may come:
a journal that has not forgotten yet is replayed once more, which changes nothing.

Which journals there are changes only while none of them holds anything (journal_places.py).

What the rest of the bookie asks of "the journal" is answered for all of them together, by the one
that is worst off: there is room where each has room, and the oldest record is that of any.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack
from typing import Final

from tallybook.core.config import JournalSettings
from tallybook.runtime.clock import Clock
from tallybook.runtime.disk import Disk
from tallybook.runtime.histogram import Histogram, merged
from tallybook.runtime.rng import Rng
from tallybook.runtime.tasks import Tasks

from .journal.chain import Damage
from .journal.format import Mark
from .journal.journal import Journal, Recovered
from .journal.records import Record

Marks = tuple[Mark, ...]
"""One mark of each journal. None of them ever goes back, so of two such tuples the later one is the greater one."""

_MIX: Final = 0x9E37_79B9_7F4A_7C15
_MASK: Final = (1 << 64) - 1


def journal_of(ledger_id: int, count: int) -> int:
    """To which of ``count`` journals a ledger belongs. Ids that follow each other are spread evenly."""
    return ((ledger_id * _MIX & _MASK) >> 32) % count


class RecoveredJournals:
    """What the journals of a bookie hold, before anything is written to them.

    Attributes:
        boot: the boot counter that the next life will have; 1 in the first. Higher than any that one of them knows:
            a crash may have come when some of them had begun the last life and others had not.
        fresh: none of them was ever written to.
    """

    def __init__(self, journals: Sequence[Recovered]) -> None:
        self._journals = tuple(journals)
        self.boot = max(journal.boot for journal in journals)
        self.fresh = self.boot == 1

    @staticmethod
    async def recover(disk: Disk, directories: Sequence[str], settings: JournalSettings, rng: Rng) -> RecoveredJournals:
        """Read them; write nothing. See ``Journal.recover``."""
        return RecoveredJournals([await Journal.recover(disk, path, settings, rng) for path in directories])

    @property
    def damage(self) -> tuple[Damage, ...]:
        """What cannot be read of any of them though it was durable."""
        return tuple(damage for journal in self._journals for damage in journal.damage)

    @property
    def clean(self) -> bool:
        """All of them were stopped cleanly."""
        return all(journal.clean for journal in self._journals)

    def count_from(self, boots: int) -> None:
        """No life has a boot counter up to ``boots``: those below may be those of a journal that was given up."""
        self.boot = max(self.boot, boots + 1)

    @property
    def refused(self) -> bool:
        """The device refused to read a part of one: another attempt may find more."""
        return any(journal.refused for journal in self._journals)

    @property
    def not_found(self) -> list[int]:
        """Those of which nothing was found, by their place in the order."""
        return [at for at, journal in enumerate(self._journals) if journal.fresh]

    def given_up(self, boots: int) -> list[int]:
        """Those, by their place in the order, that were given up: all that is younger has had lives above ``boots``."""
        return [at for at, journal in enumerate(self._journals) if journal.boot <= boots]

    async def records(self) -> AsyncIterator[Record]:
        """Every record behind the trim marks, those of a ledger in the order of their appends."""
        for journal in self._journals:
            async for record in journal.records():
                yield record

    async def start(
        self, clock: Clock, tasks: Tasks, on_failure: Callable[[Exception], None], *, min_free_bytes: int = 0
    ) -> Journals:
        """Forget what was replayed and begin to write, one journal after the other; see ``Recovered.start``."""
        started: list[Journal] = []
        async with AsyncExitStack() as undo:
            for recovered in self._journals:
                journal = await recovered.start(clock, tasks, on_failure, min_free_bytes=min_free_bytes, boot=self.boot)
                undo.push_async_callback(journal.close, clean=False)
                started.append(journal)
            undo.pop_all()
        return Journals(started)


class Journals:
    """The running journals, in the order that ``journal_of`` counts in."""

    def __init__(self, journals: Sequence[Journal]) -> None:
        self.each = tuple(journals)

    def call_on_room(self, on_room: Callable[[], None]) -> None:
        """Have ``on_room`` called when ``room_bytes`` may have grown."""
        for journal in self.each:
            journal.on_room = on_room

    def room_bytes(self, *, urgent: bool = False) -> int:
        """How much can be appended now, whatever the ledger, and will be written without waiting for a trim."""
        return min([journal.room_bytes(urgent=urgent) for journal in self.each])

    def oldest_queued_age_seconds(self) -> float:
        """How long the oldest record that is not durable has been waiting; 0 where there is none."""
        return max([journal.oldest_queued_age_seconds() for journal in self.each])

    @property
    def used_fraction(self) -> float:
        """Of the fullest one, 0 to 1."""
        return max(journal.used_fraction for journal in self.each)

    def durable_marks(self) -> Marks:
        """Every record up to here is durable, and its ``on_durable`` was called."""
        return tuple([journal.durable_mark() for journal in self.each])

    async def trim(self, marks: Marks) -> None:
        """Forget everything up to ``marks``, former ``durable_marks``, which is checkpointed.

        Raises:
            DiskFull, DiskFailed: one of the journals has failed.
        """
        for journal, mark in zip(self.each, marks, strict=True):
            await journal.trim(mark)

    async def drained(self, timeout_seconds: float) -> bool:
        """Wait until everything appended is durable. ``False``: it was not, each within ``timeout_seconds``.

        Raises:
            DiskFull, DiskFailed: one of the journals has failed.
        """
        return all([await journal.drained(timeout_seconds) for journal in self.each])

    async def close(self, *, clean: bool) -> None:
        """Stop all of them; see ``Journal.close``. One that cannot be closed keeps no other from it.

        Raises:
            InvariantViolation, DiskFull, DiskFailed: what the last one met that could not be closed.
        """
        async with AsyncExitStack() as closing:
            for journal in self.each:
                closing.push_async_callback(journal.close, clean=clean)

    def stats(self) -> dict[str, float]:
        """Numbers for metrics, of all of them together."""
        return {
            "journal_queued_bytes": sum(journal.queued_bytes for journal in self.each),
            "journal_max_queued_bytes": sum(journal.max_queued_bytes for journal in self.each),
            "journal_commits_total": sum(journal.commits for journal in self.each),
            "journal_bytes_total": sum(journal.written_bytes for journal in self.each),
            **{f"journal_device_seconds_{at}": journal.write_seconds.sum for at, journal in enumerate(self.each)},
            "journal_used_fraction": self.used_fraction,
            "journals": len(self.each),
        }

    def spreads(self) -> dict[str, Histogram]:
        """How commits and writes were spread, over all of them together."""
        return {
            "journal_commit_seconds": merged(journal.commit_seconds for journal in self.each),
            "journal_write_seconds": merged(journal.write_seconds for journal in self.each),
        }
