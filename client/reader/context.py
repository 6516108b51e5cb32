"""What the readers of one client share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial

from tallybook.core.config import ClientSettings
from tallybook.metadata.store import LedgerWatch, Versioned
from tallybook.runtime.backoff import spread
from tallybook.runtime.clock import Clock
from tallybook.runtime.lifetime import Lifetime
from tallybook.runtime.rng import Rng
from tallybook.runtime.tasks import Tasks
from tallybook.runtime.tracing import NO_TRACER, Tracer

from ..deeds import Deeds
from ..ports import Archive, Connections
from .replicas import Report


@dataclass(frozen=True, slots=True)
class ReaderContext:
    """What a handle shares with its client."""

    connections: Connections
    clock: Clock
    rng: Rng
    tasks: Tasks
    settings: ClientSettings
    read_metadata: Callable[[int], Awaitable[Versioned]]
    """Reads a ledger's metadata linearizably: what comes back is no older than the call."""
    watch: Callable[[int], LedgerWatch]
    report: Report
    archive: Archive | None = None
    """Where closed ledgers are besides bookies."""
    tracer: Tracer = NO_TRACER
    deeds: Deeds = field(default_factory=Deeds)
    lifetime: Lifetime = field(default_factory=partial(Lifetime, "the client"))
    """Of the client."""

    async def pause(self) -> None:
        """Between two attempts at what could not be reached."""
        await self.clock.sleep(spread(self.rng, self.settings.reconnect_ms / 1000))
