"""A client of a metadata store: both ports over one connection."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Self

from tallybook.runtime.clock import Clock

from .connection_status import ConnectionStatus
from .metered_store import MetadataLoad, MeteredMembership, MeteredStore
from .store import Membership, MetadataStore


@dataclass(frozen=True, slots=True)
class MetadataClient:
    """Returned by ``uri.open_metadata`` and by every driver. An async context manager that closes itself."""

    store: MetadataStore
    membership: Membership
    load: MetadataLoad | None = None
    """Counters of calls, if the client is metered."""
    link: ConnectionStatus = field(default_factory=ConnectionStatus)
    """Status of the connection."""

    def metered(self, clock: Clock) -> MetadataClient:
        """The same client with call counters."""
        load = MetadataLoad(clock, self.link)
        return MetadataClient(MeteredStore(self.store, load), MeteredMembership(self.membership, load), load, self.link)

    async def close(self) -> None:
        """End registrations and watches, release connections and threads."""
        await self.store.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
