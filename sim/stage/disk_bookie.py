"""A real bookie on a simulated disk, through restarts and crashes.

    node = DiskBookie(disk, clock, metadata)
    bookie = await node.boot()
    ...
    await node.lose_power()                 # writes that were not durable are lost, kept or torn
    bookie = await node.boot()

The bookie runs production code. Disk, clock and metadata are simulated; the index keeps its rows in memory, over a log
on the same disk.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from tallybook.bookie.bookie import Bookie
from tallybook.bookie.ledgers.confirmed_prefix import ConfirmedPrefix
from tallybook.bookie.ledgers.disposition import LedgerDisposition
from tallybook.bookie.ledgers.key_verification import LedgerFacts
from tallybook.bookie.parts import BookieParts
from tallybook.bookie.process.boot import boot
from tallybook.bookie.process.world import BookieWorld
from tallybook.bookie.recovery.store_check import BehindNotes, NeverBehind
from tallybook.bookie.storage.index.port import Index
from tallybook.core.add_kind import AddKind
from tallybook.core.answers import AddAnswer
from tallybook.core.batch import encode_batch
from tallybook.core.buffers import Buffer
from tallybook.core.errors import InvariantViolation, MetadataConflict, MetadataUnavailable, NoSuchLedger, check
from tallybook.core.ids import NO_ENTRY, NO_IDENTITY
from tallybook.core.limits import KIB, MIB
from tallybook.core.settings import (
    AdmissionSettings,
    BackgroundSettings,
    BookieSettings,
    CollectionSettings,
    JournalSettings,
    ScrubSettings,
    StorageSettings,
)
from tallybook.runtime.clock import Clock
from tallybook.runtime.concurrency.rate_limit import RateLimiter
from tallybook.runtime.rng import Rng, SeededRng
from tallybook.runtime.tasks import InlineWorkers, Tasks

from ..deterministic.disk import SimDisk
from ..memory_bookie.index import MemoryIndex

ROOT: Final = "/data/bookie"


def tiny_settings(
    *,
    write_cache_bytes: int = 64 * KIB,
    segment_bytes: int = 64 * KIB,
    flush_interval_ms: int = 10_000,
    entry_log_bytes: int = 64 * KIB,
    give_back_bytes: int = 4 * KIB,
    collect_interval_ms: int = 0,
    compact_below_percent: int = 0,
    compact_above_garbage_percent: int = 100,
    compact_all_interval_ms: int = 86_400_000,
    background_bytes_per_second: int = 0,
    scrub_period_s: int = 0,
    read_only_percent: int = 95,
    deleted_delay_s: int = 0,
    unnamed_delay_s: int = 3_600,
    admission: AdmissionSettings | None = None,
    ledger_directories: Sequence[str] = (),
    journal_directories: Sequence[str] = (),
) -> BookieSettings:
    """Settings with tiny limits. By default the bookie collects garbage only on request, does not compact logs and does
    not scrub."""
    return BookieSettings(
        bookie_id="b1",
        data_directory=ROOT,
        metadata="memory:",
        ledger_directories=tuple(ledger_directories),
        journal_directories=tuple(journal_directories),
        journal=JournalSettings(segment_bytes=segment_bytes, segment_count=4, max_commit_bytes=16 * KIB),
        storage=StorageSettings(
            write_cache_bytes=write_cache_bytes,
            entry_log_bytes=entry_log_bytes,
            give_back_bytes=give_back_bytes,
            min_free_bytes=0,
            flush_interval_ms=flush_interval_ms,
            disk_warn_percent=min(90, read_only_percent),
            disk_back_percent=min(92, read_only_percent),
            disk_read_only_percent=read_only_percent,
        ),
        admission=admission or AdmissionSettings(),
        collection=CollectionSettings(
            interval_ms=collect_interval_ms,
            deleted_delay_s=deleted_delay_s,
            unnamed_delay_s=unnamed_delay_s,
            compact_below_percent=compact_below_percent,
            compact_above_garbage_percent=compact_above_garbage_percent,
            compact_all_interval_ms=compact_all_interval_ms,
        ),
        scrub=ScrubSettings(period_s=scrub_period_s),
        background=BackgroundSettings(
            min_bytes_per_second=background_bytes_per_second or MIB, max_bytes_per_second=background_bytes_per_second
        ),
    )


def batch_of(
    first: int, count: int = 1, *, ledger_id: int = 1, lac: int | None = None, payload: bytes = b"entry"
) -> bytes:
    """A batch whose bytes depend on the arguments only."""
    payloads = [payload + b" %d" % entry_id for entry_id in range(first, first + count)]
    known = first - 1 if lac is None else lac
    return encode_batch(ledger_id, first, payloads, lac=known, ledger_length=10**12, written_at_us=17)


@dataclass
class KnownMetadata:
    """The metadata that a bookie reads, as plain values."""

    verifiers: dict[int, bytes] = field(default_factory=dict)
    """Key verifiers of existing ledgers; empty for no password."""
    identities: dict[int, bytes] = field(default_factory=dict)
    """Identities of ledgers that have one."""
    open_to_all: bool = True
    """Whether ledgers that are not in ``verifiers`` exist, without a password."""
    dispositions: dict[int, LedgerDisposition] = field(default_factory=dict)
    """Dispositions of ledgers; all others are kept."""
    confirmed_prefixes: dict[int, ConfirmedPrefix] = field(default_factory=dict)
    """Confirmed prefixes of ledgers; empty for all others."""
    away: bool = False
    """Whether lookups of the confirmed prefix fail."""
    confirmed_prefix_lookups: int = 0
    id_counter: int = 1_000
    cookies: dict[str, bytes] = field(default_factory=dict)
    lookups: int = 0
    cluster: str = "cluster-a"

    async def cluster_id(self) -> str:
        """The cluster id."""
        return self.cluster

    async def read_cookie(self, bookie_id: str) -> bytes | None:
        """The recorded cookie."""
        return self.cookies.get(bookie_id)

    async def write_cookie(self, bookie_id: str, cookie: bytes, *, replace: bool = False) -> None:
        """Record a cookie."""
        if not replace and self.cookies.get(bookie_id, cookie) != cookie:
            raise MetadataConflict(f"bookie {bookie_id} has another cookie")
        self.cookies[bookie_id] = cookie

    async def facts_of(self, ledger_id: int) -> LedgerFacts | None:
        """Key verifier and identity of a ledger."""
        self.lookups += 1
        verifier = self.verifiers.get(ledger_id, b"" if self.open_to_all else None)
        return None if verifier is None else LedgerFacts(verifier, self.identities.get(ledger_id, NO_IDENTITY))

    async def disposition_of(self, ledger_id: int, _bookie_id: str = "", _identity: bytes = b"") -> LedgerDisposition:
        """Disposition of a ledger."""
        return self.dispositions.get(ledger_id, LedgerDisposition.KEPT)

    async def confirmed_prefix_of(self, ledger_id: int) -> ConfirmedPrefix:
        """Confirmed prefix of a ledger."""
        self.confirmed_prefix_lookups += 1
        if self.away:
            raise MetadataUnavailable("the metadata are away")
        if not self.open_to_all and ledger_id not in self.verifiers:
            raise NoSuchLedger(f"there is no ledger {ledger_id}")
        return self.confirmed_prefixes.get(ledger_id, ConfirmedPrefix(NO_ENTRY, closed=False))

    async def read_id_counter(self) -> int:
        """The id counter; all ledger ids are below it."""
        return self.id_counter


class DiskBookie:
    """One bookie, through all lives.

    Args:
        disk: has its data.
        metadata: the metadata that it sees.
        settings: default ``tiny_settings()``.
    """

    def __init__(
        self,
        disk: SimDisk,
        clock: Clock,
        metadata: KnownMetadata | None = None,
        settings: BookieSettings | None = None,
        rng: Rng | None = None,
    ) -> None:
        self.disk = disk
        self.metadata = metadata or KnownMetadata()
        self.settings = settings or tiny_settings()
        self.behind: BehindNotes = NeverBehind()
        """Notes whether the metadata store was restored from an older copy."""
        self.named: Callable[[str, int, RateLimiter], AsyncIterator[int]] | None = None
        """See ``limbo_count.NamedLedgers``."""
        self.failures: list[str] = []
        """Reasons of fail-safes and dead tasks, in the present life."""
        self._clock = clock
        self._rng = rng or SeededRng("disk bookie")
        self._crashes = 0
        self._tasks: Tasks | None = None
        self._bookie: Bookie | None = None

    @property
    def bookie(self) -> Bookie:
        """The running bookie."""
        if self._bookie is None:
            raise InvariantViolation("the bookie is not running")
        return self._bookie

    @property
    def parts(self) -> BookieParts:
        """The parts of the running bookie, to be looked at and disturbed."""
        return self.bookie._parts  # noqa: SLF001 - no public way to get them

    async def boot(self, *, registers: bool = True) -> Bookie:
        """Boot the bookie; with ``registers``, also as registered."""
        check(self._tasks is None, "the bookie runs already")
        self.failures = []
        self._tasks = Tasks("b1", lambda name, error: self.failures.append(f"task {name} died: {error!r}"))
        world = BookieWorld(
            disk=self.disk,
            clock=self._clock,
            rng=self._rng,
            tasks=self._tasks,
            workers=InlineWorkers(),
            open_index=self._open_index,
            facts_of=self.metadata.facts_of,
            disposition_of=self.metadata.disposition_of,
            id_counter=self.metadata.read_id_counter,
            confirmed_prefix_of=self.metadata.confirmed_prefix_of,
            registry=self.metadata,
            fail_safe=self.failures.append,
            behind=self.behind,
            named=self.named,
        )
        try:
            self._bookie = await boot(self.settings, world)
            if registers:
                await self._bookie.registered()
        except BaseException:
            await self._end()
            raise
        return self._bookie

    def add(
        self,
        batch: Buffer,
        key: bytes = b"",
        *,
        kind: AddKind = AddKind.ORDINARY,
        others_in_flight: bool = False,
        identity: bytes = NO_IDENTITY,
    ) -> asyncio.Future[AddAnswer]:
        """Send one batch to the running bookie. A second answer is reported as an error by the loop."""
        answered: asyncio.Future[AddAnswer] = asyncio.get_running_loop().create_future()
        self.bookie.add(
            batch, key, answered.set_result, kind=kind, others_in_flight=others_in_flight, identity=identity
        )
        return answered

    async def stop(self, *, clean: bool = True) -> None:
        """Stop the bookie."""
        await self.bookie.close(clean=clean)
        await self._end()

    async def kill(self) -> None:
        """Kill the process: written data stay, memory is lost."""
        await self._end()
        self.disk = self.disk.fork()

    async def lose_power(self, rng: Rng | None = None) -> None:
        """Power off the machine: writes that were not durable are lost, kept or torn at random."""
        await self._end()
        self._crashes += 1
        self.disk = self.disk.lose_power(rng or self._rng.fork(f"crash {self._crashes}"))

    async def _end(self) -> None:
        tasks, self._tasks, self._bookie = self._tasks, None, None
        if tasks is not None:
            await tasks.close()

    async def _open_index(self, directory: str, *, create: bool) -> Index:
        return await MemoryIndex.open(self.disk, directory, create=create)
