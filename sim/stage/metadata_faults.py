"""Metadata stores that a test holds up: one client's view, in which updates wait, get lost or are refused.

slow = Gated()
async with cluster.client(seen_through=slow) as writer:
    slow.hold()
    ...
    slow.release()
"""

from __future__ import annotations

import asyncio
from typing import Any, cast

from tallybook.core.errors import InvariantViolation, MetadataUnavailable
from tallybook.metadata.model import LedgerMetadata
from tallybook.metadata.store import LedgerWatch, MetadataStore, Unknown, Versioned, WriteResult
from tallybook.runtime.clock import Clock


class _Through:
    """One client's view of the store, which a test holds up."""

    def __init__(self) -> None:
        self._inner: MetadataStore | None = None

    def __call__(self, store: MetadataStore) -> MetadataStore:
        """To be given to ``MemoryCluster.client`` as ``seen_through``."""
        self._inner = store
        return cast("MetadataStore", self)

    @property
    def inner(self) -> MetadataStore:
        """The store behind it."""
        if self._inner is None:
            raise InvariantViolation("no client sees its store through this")
        return self._inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def watch_ledger(self, ledger_id: int) -> LedgerWatch:
        """As the store behind."""
        return self.inner.watch_ledger(ledger_id)


class Gated(_Through):
    """Updates, and reads if asked for, wait while it is closed."""

    def __init__(self) -> None:
        super().__init__()
        self._open = asyncio.Event()
        self._open.set()
        self._reads = False
        self._passing = 0
        self.waiting = 0

    def hold(self, *, reads: bool = False, after: int = 0) -> None:
        """Let ``after`` more through, and then no more."""
        self._reads, self._passing = reads, after
        self._open.clear()

    def release(self) -> None:
        """Let everybody through."""
        self._open.set()

    async def _pass(self) -> None:
        if self._passing:
            self._passing -= 1
            return
        self.waiting += 1
        await self._open.wait()
        self.waiting -= 1

    async def read_ledger(self, ledger_id: int, *, linearizable: bool = False) -> Versioned:
        """Wait, and read."""
        if self._reads:
            await self._pass()
        return await self.inner.read_ledger(ledger_id, linearizable=linearizable)

    async def update_ledger(self, metadata: LedgerMetadata, expected_version: int) -> WriteResult:
        """Wait, and write."""
        await self._pass()
        return await self.inner.update_ledger(metadata, expected_version)


class AnswersLost(_Through):
    """While it loses, updates are lost on the way, and whether they arrived is not known."""

    def __init__(self) -> None:
        super().__init__()
        self.losing = False
        self.lost = 0

    async def update_ledger(self, metadata: LedgerMetadata, expected_version: int) -> WriteResult:
        """Write, or not."""
        if self.losing:
            self.lost += 1
            return Unknown("lost on purpose")
        return await self.inner.update_ledger(metadata, expected_version)


class WritesRefused(_Through):
    """While it refuses, what is written fails after a second, and was certainly not done."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock
        self.refuses = False
        self.refused = 0

    async def update_ledger(self, metadata: LedgerMetadata, expected_version: int) -> WriteResult:
        """Write, or refuse."""
        if self.refuses:
            self.refused += 1
            await self._clock.sleep(1)
            raise MetadataUnavailable("locked by another process")
        return await self.inner.update_ledger(metadata, expected_version)
