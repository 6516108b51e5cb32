"""One client of a metadata store: both ports over one connection."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Self

from tallybook.runtime.clock import Clock

from .link import Link
from .metered import MetadataLoad, MeteredMembership, MeteredStore
from .store import Membership, MetadataStore


@dataclass(frozen=True, slots=True)
class MetadataClient:
    """What ``uri.open_metadata`` and every driver give. Also an async context manager that closes itself."""

    store: MetadataStore
    membership: Membership
    load: MetadataLoad | None = None
    """What is asked of it, where somebody counts that."""
    link: Link = field(default_factory=Link)
    """How the connection to it does."""

    def metered(self, clock: Clock) -> MetadataClient:
        """The same, counted."""
        load = MetadataLoad(clock, self.link)
        return MetadataClient(MeteredStore(self.store, load), MeteredMembership(self.membership, load), load, self.link)

    async def close(self) -> None:
        """Leave: end registrations and watches, release connections and threads."""
        await self.store.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
