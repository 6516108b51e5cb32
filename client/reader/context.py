"""The services of a client that its ledger readers share."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from tallybook.core.settings import ClientSettings
from tallybook.metadata.store import LedgerWatch, Versioned
from tallybook.runtime.clock import Clock
from tallybook.runtime.concurrency.backoff import Backoff, jittered
from tallybook.runtime.concurrency.handle_lifetime import Lifetime
from tallybook.runtime.rng import Rng
from tallybook.runtime.tasks import Tasks
from tallybook.runtime.tracing.port import NO_TRACER, Tracer

from ..ports import Connections, LedgerArchive
from ..recovery_counters import RecoveryCounters
from .replicas import FailureCallback

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ReaderContext:
    """Connections, stores, settings and counters that a client gives to its readers."""

    connections: Connections
    clock: Clock
    rng: Rng
    tasks: Tasks
    settings: ClientSettings
    read_metadata: Callable[[int], Awaitable[Versioned]]
    """Reads a ledger's metadata linearizably: no older than the call."""
    watch: Callable[[int], LedgerWatch]
    report: FailureCallback
    archive: LedgerArchive | None = None
    """The archive of offloaded ledgers."""
    tracer: Tracer = NO_TRACER
    counters: RecoveryCounters = field(default_factory=RecoveryCounters)
    lifetime: Lifetime = field(default_factory=partial(Lifetime, "the client"))
    """The client's lifetime."""
    background: bool = False
    """Whether its reads give way to other requests at bookies."""

    async def pause(self) -> None:
        """Pause before a retry."""
        await self.clock.sleep(jittered(self.rng, self.settings.reconnect_ms / 1000))

    def busy_backoff(self) -> Backoff:
        """The pauses of a request that begins now, while bookies are BUSY."""
        deadline = self.clock.monotonic() + self.settings.request_timeout_ms / 1000
        return Backoff(self.clock, self.rng, first_s=self.settings.reconnect_ms / 1000, deadline=deadline)

    def spawner(self, ledger_id: int) -> Callable[[Coroutine[Any, Any, T]], asyncio.Task[T]]:
        """Runs the reads of a ledger in the background."""
        return partial(self.tasks.spawn, name=f"reader-{ledger_id}")
