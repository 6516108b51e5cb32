"""Test bench of the journal alone, on a simulated disk."""

from dataclasses import dataclass, field

from tallybook.bookie.journal.format import BatchRecord, JournalRecord
from tallybook.bookie.journal.journal import Journal, RecoveredJournal
from tallybook.core.errors import check
from tallybook.core.limits import KIB, MIB
from tallybook.core.settings import JournalSettings
from tallybook.runtime.rng import SeededRng
from tallybook.runtime.tasks import Tasks
from tallybook.sim.deterministic import SimClock, SimDisk

DIRECTORY = "/data/journal"
SETTINGS = JournalSettings(segment_bytes=16 * KIB, segment_count=4, max_commit_bytes=8 * KIB, seal_after_ms=50)
LARGE = JournalSettings(segment_bytes=4 * MIB, segment_count=3, max_commit_bytes=MIB)


@dataclass
class JournalBench:
    """A journal on a simulated disk, with its callbacks' results."""

    disk: SimDisk
    settings: JournalSettings = SETTINGS
    clock: SimClock = field(default_factory=SimClock)
    durable: list[int] = field(default_factory=list)
    failures: list[Exception] = field(default_factory=list)
    fatal: list[BaseException] = field(default_factory=list)

    async def recover(self) -> RecoveredJournal:
        """Read the journal from the disk."""
        return await Journal.recover(self.disk, DIRECTORY, self.settings, SeededRng(1))

    async def start(self) -> Journal:
        """Recover the journal, and start it."""
        recovered = await self.recover()
        self.tasks = Tasks("bench", lambda _name, error: self.fatal.append(error))
        self.journal = await recovered.start(self.clock, self.tasks, self.failures.append, on_space=lambda: None)
        return self.journal

    def append(self, number: int, size: int = 100) -> None:
        """Append the batch with this number."""
        self.journal.append(batch(number, size), lambda: self.durable.append(number))

    async def drained(self) -> bool:
        """Wait up to one second until everything appended is durable."""
        return await self.journal.drained(1.0)

    async def replayed(self) -> list[JournalRecord]:
        """The records that a boot would find now; fail on damage."""
        recovered = await self.recover()
        check(recovered.damage == (), f"the journal is damaged: {recovered.damage}")
        return [record async for record in recovered.records()]

    def blocks(self) -> list[str]:
        """Writes to segments after their headers, as offset+size."""
        return [
            f"{operation.offset}+{operation.size}"
            for operation in self.disk.trace
            if operation.name == "write-durable" and "segment" in operation.path and operation.offset
        ]


def batch(number: int, size: int = 100) -> BatchRecord:
    """A record of ``size`` bytes that contains its number."""
    return BatchRecord(number.to_bytes(4, "big") * (size // 4))
