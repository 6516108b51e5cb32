"""Ports of the client: connections, archive, metadata guard, and the ``ClientWorld`` that bundles them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from tallybook.archive.trace_location import ArchiveLocation
from tallybook.core.batch import BatchHeader, Entry
from tallybook.metadata.ledger.archived import Receipt
from tallybook.metadata.ledger_update import Transition
from tallybook.metadata.metered_store import MetadataLoad
from tallybook.metadata.store import Membership, MetadataStore, Versioned
from tallybook.runtime.clock import Clock
from tallybook.runtime.metrics.usage import MetricValue
from tallybook.runtime.rng import Rng
from tallybook.runtime.tracing.port import NO_TRACER, Tracer

from .connection.port import BookieConnection
from .load import ClientLoad

UpdateLedger: TypeAlias = Callable[[Transition], Awaitable[Versioned]]
"""Applies a pure transition to one ledger's metadata by compare-and-set, retrying on conflict."""


class Connections(Protocol):
    """A source of connections to bookies."""

    async def get(self, bookie_id: str) -> BookieConnection:
        """A working connection to the bookie of that id.

        Raises:
            BookieUnavailable: no connection within the connect timeout.
        """

    async def close(self) -> None:
        """Close every connection."""


class LedgerArchive(Protocol):
    """Reads archived ledgers.

    Reads raise ``ObjectMissing`` or ``ObjectDamaged`` if the object does not match the receipt, and
    ``ArchiveUnavailable`` or ``ArchiveDenied`` if the object store does not return it.
    """

    async def batches(
        self, receipt: Receipt, ledger_id: int, first: int, last: int, max_bytes: int
    ) -> list[tuple[BatchHeader, bytes]]:
        """Batches from the one that contains ``first``, up to ``last`` or ``max_bytes`` of payload; at least one."""

    async def entry(self, receipt: Receipt, ledger_id: int, entry_id: int) -> Entry:
        """One entry."""

    async def place(self, receipt: Receipt, ledger_id: int, entry_id: int) -> ArchiveLocation:
        """The location of an entry, from the index of its object."""

    def forget(self, key: str) -> None:
        """Drop the cached parts of an object that no longer exists."""

    def readings(self) -> Mapping[str, MetricValue]:
        """Metric readings, named as in ``archive/metrics``; empty before the first read."""

    async def close(self) -> None:
        """Release connections and end background work."""


class ChangeGuard(Protocol):
    """Checks before a metadata change that this process is authorized to make it."""

    def allow(self) -> None:
        """Take changes as authorized: a broader permission was granted to this process."""


@dataclass(frozen=True, slots=True)
class ClientWorld:
    """The stores, connections, clock and randomness of one client, real or simulated. The client closes them."""

    store: MetadataStore
    membership: Membership
    connections: Connections
    clock: Clock
    rng: Rng
    archive: LedgerArchive | None = None
    load: ClientLoad | None = None
    """Counters of requests to bookies, if they are counted."""
    metadata_load: MetadataLoad | None = None
    """Counters of requests to the metadata store."""
    tracer: Tracer = NO_TRACER
    """Traces adds and reads."""
    guard: ChangeGuard | None = None
    """Guards metadata changes; ``None``: no guard, or the store is read-only."""
