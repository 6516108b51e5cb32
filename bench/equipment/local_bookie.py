"""A bookie in this process, on a real disk, without gRPC and without a cluster, to measure its storage alone.

Its metadata contain every ledger, without a password, except those in ``deleted``.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial

from tallybook.bookie.bookie import Bookie
from tallybook.bookie.ledgers.confirmed_prefix import ConfirmedPrefix
from tallybook.bookie.ledgers.disposition import LedgerDisposition
from tallybook.bookie.ledgers.key_verification import LedgerFacts
from tallybook.bookie.process.boot import boot
from tallybook.bookie.process.server import IndexThreads
from tallybook.bookie.process.world import BookieWorld
from tallybook.core.answers import AddAnswer
from tallybook.core.error_codes import error_from_wire
from tallybook.core.errors import Busy, check
from tallybook.core.ids import MAX_ID, NO_ENTRY
from tallybook.core.settings import BookieSettings
from tallybook.runtime.clock import RealClock
from tallybook.runtime.disk.os_disk import RealDisk
from tallybook.runtime.rng import SystemRng
from tallybook.runtime.tasks import Tasks, ThreadWorkers


@dataclass
class LocalMetadata:
    """The metadata that a bookie reads. Reuse it when the bookie restarts: it has the cookie."""

    cookies: dict[str, bytes] = field(default_factory=dict)
    deleted: frozenset[int] | range = frozenset()

    async def cluster_id(self) -> str:
        """A constant."""
        return "bench"

    async def read_cookie(self, bookie_id: str) -> bytes | None:
        """The recorded cookie."""
        return self.cookies.get(bookie_id)

    async def write_cookie(self, bookie_id: str, cookie: bytes, *, replace: bool = False) -> None:
        """Record a cookie."""
        check(replace or self.cookies.get(bookie_id, cookie) == cookie, "the bookie has another identity")
        self.cookies[bookie_id] = cookie

    async def facts_of(self, ledger_id: int) -> LedgerFacts:
        """No ledger has a password."""
        return LedgerFacts(b"")

    async def disposition_of(self, ledger_id: int, _bookie_id: str, _identity: bytes) -> LedgerDisposition:
        """Whether the only bookie of a ledger keeps it."""
        return LedgerDisposition.RELEASED if ledger_id in self.deleted else LedgerDisposition.KEPT

    async def confirmed_prefix_of(self, ledger_id: int) -> ConfirmedPrefix:
        """None: nothing is repaired here."""
        return ConfirmedPrefix(NO_ENTRY, closed=False)

    async def id_counter(self) -> int:
        """A value above all ids."""
        return MAX_ID


@asynccontextmanager
async def local_bookie(settings: BookieSettings, metadata: LocalMetadata) -> AsyncIterator[Bookie]:
    """A bookie that is stopped cleanly at the end of the block."""
    ended: list[str] = []
    disk, workers = RealDisk(direct=settings.direct_io, read_threads=settings.storage.read_threads), IndexThreads(2)
    pure = ThreadWorkers(1, "checkpoint")
    tasks = Tasks("bench", lambda name, error: ended.append(f"{name}: {error!r}"))

    world = BookieWorld(
        disk=disk,
        clock=RealClock(),
        rng=SystemRng(),
        tasks=tasks,
        workers=pure,
        open_index=partial(workers.open_index, disk, settings.storage),
        facts_of=metadata.facts_of,
        disposition_of=metadata.disposition_of,
        confirmed_prefix_of=metadata.confirmed_prefix_of,
        id_counter=metadata.id_counter,
        registry=metadata,
        fail_safe=ended.append,
    )
    try:
        bookie = await boot(settings, world)
        try:
            yield bookie
        finally:
            await bookie.close()
        check(not ended, f"the bookie ended by itself: {ended}")
    finally:
        await tasks.close()
        await workers.close()
        await pure.close()
        await disk.close()


async def add(bookie: Bookie, batch: bytes) -> None:
    """Add a batch; retry after BUSY, as a client does.

    Raises:
        TallybookError: the add failed with another error.
    """
    while True:
        answered: asyncio.Future[AddAnswer] = asyncio.get_running_loop().create_future()
        bookie.add(batch, b"", answered.set_result)
        answer = await answered
        if not answer.code:
            return
        if answer.code != Busy.wire_code:
            raise error_from_wire(answer.code, "the bookie refused a batch")
        await asyncio.sleep(answer.retry_after_ms / 1000)
