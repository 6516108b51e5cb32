"""The surroundings of a bookie: disk, clock, tasks, and lookups in the metadata."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

from tallybook.metadata.records.restored_store import ids_below
from tallybook.runtime.clock import Clock
from tallybook.runtime.concurrency.rate_limit import RateLimiter
from tallybook.runtime.disk.port import Disk
from tallybook.runtime.rng import Rng
from tallybook.runtime.tasks import Tasks, Workers

from ..directories.index_home import OpenIndex
from ..directories.layout import CookieRegistry
from ..ledgers.confirmed_prefix import ConfirmedPrefixLookup
from ..ledgers.disposition import DispositionLookup
from ..ledgers.key_verification import FactsLookup
from ..recovery.store_check import BehindNotes, NeverBehind


@dataclass(frozen=True, slots=True)
class BookieWorld:
    """Everything outside of the bookie."""

    disk: Disk
    clock: Clock
    rng: Rng
    tasks: Tasks
    """Runs background work; an essential task that dies ends the process."""
    workers: Workers
    open_index: OpenIndex
    facts_of: FactsLookup
    """Looks up key verifier and identity of a ledger in the metadata."""
    disposition_of: DispositionLookup
    """Looks up the disposition of a held ledger."""
    id_counter: Callable[[], Awaitable[int]]
    """An upper bound of all ledger ids ever assigned; read when the journal lost records, and before a ledger counts as
    deleted."""
    confirmed_prefix_of: ConfirmedPrefixLookup
    """Looks up the confirmed prefix of a ledger, linearizably."""
    registry: CookieRegistry
    """Cookies in the metadata."""
    fail_safe: Callable[[str], None]
    """Ends the process at once; called with the reason."""
    named: Callable[[str, int, RateLimiter], AsyncIterator[int]] | None = None
    """Lists the ledgers that name a bookie, to count those in limbo; ``None``: count held ledgers only."""
    behind: BehindNotes = field(default_factory=NeverBehind)
    """Records that the metadata store was restored from an older copy."""

    async def ids_below(self) -> int:
        """See ``metadata.records.restored_store.ids_below``."""
        return await ids_below(self.id_counter, self.behind.read)
