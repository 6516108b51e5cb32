"""The journals of a bookie: one or several, each in a directory of its own, preferably on separate disks.

Every ledger belongs to one of them, by a hash of its id. So all records of a ledger (its adds, fence, deletion) are in
one journal, in order, and the journals are independent: each has its own group commits, blocks and mark. A checkpoint
takes the marks of all of them in the turn in which it swaps the write cache; afterwards each journal trims up to its
own mark. A crash between these steps only causes some journals to be replayed once more, which changes nothing.

The set of journals changes only while none of them holds anything (journal_changes.py).

``Journals`` answers for all of them with the worst value: the least free space, and the oldest record of any.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack
from typing import Final

from tallybook.core.settings import JournalSettings
from tallybook.core.settings.types import MAX_DIRECTORIES
from tallybook.runtime.clock import Clock
from tallybook.runtime.disk.port import Disk
from tallybook.runtime.metrics.catalog import MetricKind
from tallybook.runtime.metrics.histogram import merged
from tallybook.runtime.metrics.part_metrics import PartMetrics
from tallybook.runtime.rng import Rng
from tallybook.runtime.tasks import Tasks

from .format import JournalMark, JournalRecord
from .journal import Journal, RecoveredJournal
from .torn_tail import JournalDamage

JournalMarks = tuple[JournalMark, ...]
"""One mark of each journal. None of them ever goes back, so the later of two such tuples is the greater one."""

_MIX: Final = 0x9E37_79B9_7F4A_7C15
_MASK: Final = (1 << 64) - 1


def journal_of(ledger_id: int, count: int) -> int:
    """The journal of a ledger, out of ``count``. Consecutive ids are spread evenly."""
    return ((ledger_id * _MIX & _MASK) >> 32) % count


class RecoveredJournals:
    """The contents of a bookie's journals before anything is written to them.

    Attributes:
        boot: the boot counter of the next incarnation; 1 in the first. Higher than in any of them: a crash may have
            come when only some of them had begun the last incarnation.
        fresh: none of them was ever written to.
    """

    def __init__(self, journals: Sequence[RecoveredJournal]) -> None:
        self._journals = tuple(journals)
        self.boot = max(journal.boot for journal in journals)
        self.fresh = self.boot == 1

    @staticmethod
    async def recover(disk: Disk, directories: Sequence[str], settings: JournalSettings, rng: Rng) -> RecoveredJournals:
        """Read them; writes nothing. See ``Journal.recover``."""
        return RecoveredJournals([await Journal.recover(disk, path, settings, rng) for path in directories])

    @property
    def damage(self) -> tuple[JournalDamage, ...]:
        """Parts of any of them that were durable and cannot be read."""
        return tuple(damage for journal in self._journals for damage in journal.damage)

    @property
    def clean(self) -> bool:
        """Whether all of them were stopped cleanly."""
        return all(journal.clean for journal in self._journals)

    def count_from(self, boots: int) -> None:
        """Use boot counters above ``boots`` only: lower ones may have been used by a journal that was given up."""
        self.boot = max(self.boot, boots + 1)

    @property
    def refused(self) -> bool:
        """Whether the device refused to read part of one: another attempt may read more."""
        return any(journal.refused for journal in self._journals)

    @property
    def not_found(self) -> list[int]:
        """Positions of the journals of which nothing was found."""
        return [at for at, journal in enumerate(self._journals) if journal.fresh]

    def given_up(self, boots: int) -> list[int]:
        """Positions of the journals that were given up: those with a boot counter up to ``boots``."""
        return [at for at, journal in enumerate(self._journals) if journal.boot <= boots]

    async def records(self) -> AsyncIterator[JournalRecord]:
        """Every record after the trim marks, those of a ledger in the order of their appends."""
        for journal in self._journals:
            async for record in journal.records():
                yield record

    async def start(
        self,
        clock: Clock,
        tasks: Tasks,
        on_failure: Callable[[Exception], None],
        *,
        on_space: Callable[[], None],
        min_free_bytes: int = 0,
    ) -> Journals:
        """Trim what was replayed and begin to write, one journal after the other; see ``RecoveredJournal.start``."""
        started: list[Journal] = []
        async with AsyncExitStack() as undo:
            for recovered in self._journals:
                journal = await recovered.start(
                    clock, tasks, on_failure, on_space=on_space, min_free_bytes=min_free_bytes, boot=self.boot
                )
                undo.push_async_callback(journal.close, clean=False)
                started.append(journal)
            undo.pop_all()
        return Journals(started)


class Journals:
    """The running journals, in the order of ``journal_of``."""

    def __init__(self, journals: Sequence[Journal]) -> None:
        self.each = tuple(journals)

    def space_bytes(self, *, urgent: bool = False) -> int:
        """How many bytes can be appended now for any ledger, and will be written without waiting for a trim."""
        return min([journal.space_bytes(urgent=urgent) for journal in self.each])

    def oldest_queued_age_seconds(self) -> float:
        """How long the oldest record that is not durable has been waiting; 0 if there is none."""
        return max([journal.oldest_queued_age_seconds() for journal in self.each])

    @property
    def used_fraction(self) -> float:
        """Used part of the fullest one, 0 to 1."""
        return max(journal.used_fraction for journal in self.each)

    def durable_marks(self) -> JournalMarks:
        """The positions up to which every record is durable, and its ``on_durable`` was called."""
        return tuple([journal.durable_mark() for journal in self.each])

    async def trim(self, marks: JournalMarks) -> None:
        """Discard everything up to ``marks``, earlier ``durable_marks``, which is checkpointed.

        Raises:
            DiskFull, DiskFailed: one of the journals has failed.
        """
        for journal, mark in zip(self.each, marks, strict=True):
            await journal.trim(mark)

    async def drained(self) -> None:
        """Wait until everything appended is durable.

        Raises:
            DiskFull, DiskFailed: one of the journals has failed.
        """
        for journal in self.each:
            await journal.drained()

    async def close(self, *, clean: bool) -> None:
        """Stop all of them, also if one fails; see ``Journal.close``.

        Raises:
            InvariantViolation, DiskFull, DiskFailed: the error of the last one that failed.
        """
        async with AsyncExitStack() as closing:
            for journal in self.each:
                closing.push_async_callback(journal.close, clean=clean)

    def device_seconds(self, at: int) -> float | None:
        """Seconds the device spent on writes of one journal; ``None`` if there are fewer."""
        return self.each[at].write_seconds.sum if at < len(self.each) else None


METRICS: Final = (
    PartMetrics[Journals]()
    .counter(
        "journal_commits_total",
        "tallybook_journal_commits_total",
        "Group commits with records in them.",
        lambda journals: sum(journal.commits for journal in journals.each),
    )
    .counter(
        "journal_bytes_total",
        "tallybook_journal_bytes_total",
        "Bytes of journal blocks written.",
        lambda journals: sum(journal.written_bytes for journal in journals.each),
    )
    .histogram(
        "journal_commit_seconds",
        "tallybook_journal_commit_seconds",
        "For each group commit, the time from its oldest record's append until it was durable.",
        lambda journals: merged(journal.commit_seconds for journal in journals.each),
    )
    .histogram(
        "journal_write_seconds",
        "tallybook_journal_write_seconds",
        "Duration of each durable journal write.",
        lambda journals: merged(journal.write_seconds for journal in journals.each),
    )
    .each(
        MetricKind.COUNTER,
        "journal_device_seconds_{}",
        "tallybook_journal_device_seconds_total",
        "Seconds the device spent on journal writes, for each journal: 0 is the first of `journal_directories`.",
        "journal",
        map(str, range(MAX_DIRECTORIES)),
        lambda journals, at: journals.device_seconds(int(at)),
    )
    .gauge(
        "journal_queued_bytes",
        "tallybook_journal_queued_bytes",
        "Bytes that wait for the journal.",
        lambda journals: sum(journal.queued_bytes for journal in journals.each),
    )
    .gauge(
        "journal_max_queued_bytes",
        "tallybook_journal_max_queued_bytes",
        "Bytes that may be queued for the journal now; near this, adds wait for a checkpoint.",
        lambda journals: sum(journal.max_queued_bytes for journal in journals.each),
    )
    .gauge(
        "journal_used_fraction",
        "tallybook_journal_used_fraction",
        "Part of the journal in use, 0 to 1.",
        lambda journals: journals.used_fraction,
    )
    .gauge("journals", "tallybook_journals", "Number of journals.", lambda journals: len(journals.each))
)
