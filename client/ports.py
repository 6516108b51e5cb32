"""What the handles of a client need of the client itself, and what the client stands on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from tallybook.archive.place import ArchivePlace
from tallybook.core.batch import BatchHeader, Entry
from tallybook.metadata.archived import Receipt
from tallybook.metadata.metered import MetadataLoad
from tallybook.metadata.model import LedgerMetadata
from tallybook.metadata.store import Membership, MetadataStore, Versioned
from tallybook.runtime.clock import Clock
from tallybook.runtime.meter import Reading
from tallybook.runtime.rng import Rng
from tallybook.runtime.tracing import NO_TRACER, Tracer

from .bookie_port import BookieConnection
from .load import ClientLoad

Transition: TypeAlias = Callable[[LedgerMetadata], LedgerMetadata]

UpdateLedger: TypeAlias = Callable[[Transition], Awaitable[Versioned]]
"""Applies a pure transition to one ledger's metadata by compare-and-set, until it holds."""


class Connections(Protocol):
    """Where connections to bookies come from."""

    async def get(self, bookie_id: str) -> BookieConnection:
        """A working connection to the bookie of that id.

        Raises:
            BookieUnavailable: there is none to be had within the connect timeout.
        """

    async def close(self) -> None:
        """Close every connection."""


class Archive(Protocol):
    """Where archived ledgers are read from.

    Reads raise ``ObjectMissing`` and ``ObjectDamaged`` where the object is not (any more) what the receipt
    says, ``ArchiveUnavailable`` and ``ArchiveDenied`` where the store does not give it.
    """

    async def batches(
        self, receipt: Receipt, ledger_id: int, first: int, last: int, max_bytes: int
    ) -> list[tuple[BatchHeader, bytes]]:
        """Batches from the one that holds ``first``, up to ``last`` or ``max_bytes`` of payload; at least one."""

    async def entry(self, receipt: Receipt, ledger_id: int, entry_id: int) -> Entry:
        """One entry."""

    async def place(self, receipt: Receipt, ledger_id: int, entry_id: int) -> ArchivePlace:
        """Where an entry lies, as the index of its object says."""

    def forget(self, key: str) -> None:
        """Drop what is cached of an object that is not there any more."""

    def readings(self) -> Mapping[str, Reading]:
        """Numbers, named as in ``archive/metrics``; none before anything was read from it."""

    async def close(self) -> None:
        """Release connections and end background work."""


class ChangeGuard(Protocol):
    """Asks, before a change of the metadata, whether this process may make it."""

    def allow(self) -> None:
        """Take it as allowed: this process was allowed more."""


@dataclass(frozen=True, slots=True)
class ClientWorld:
    """The stores and seams of one client, real or simulated. The client closes them with itself."""

    store: MetadataStore
    membership: Membership
    connections: Connections
    clock: Clock
    rng: Rng
    archive: Archive | None = None
    load: ClientLoad | None = None
    """What is asked of the bookies, where that is counted."""
    metadata_load: MetadataLoad | None = None
    """The same of the metadata store."""
    tracer: Tracer = NO_TRACER
    """Where adds and reads are told to those who want traces."""
    guard: ChangeGuard | None = None
    """Guards the metadata; ``None``: nothing does, or the store takes no change at all."""
