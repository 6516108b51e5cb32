"""Metadata stores that delay, lose or refuse updates of one client.

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
from tallybook.metadata.ledger.model import LedgerMetadata
from tallybook.metadata.store import LedgerWatch, MetadataStore, Unknown, Versioned, WriteResult
from tallybook.runtime.clock import Clock


class _Through:
    """Wraps the metadata store of one client."""

    def __init__(self) -> None:
        self._inner: MetadataStore | None = None

    def __call__(self, store: MetadataStore) -> MetadataStore:
        """Wrap the store; for ``seen_through`` of ``MemoryCluster.client``."""
        self._inner = store
        return cast("MetadataStore", self)

    @property
    def inner(self) -> MetadataStore:
        """The wrapped store."""
        if self._inner is None:
            raise InvariantViolation("no client uses this store yet")
        return self._inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def watch_ledger(self, ledger_id: int) -> LedgerWatch:
        """As the wrapped store."""
        return self.inner.watch_ledger(ledger_id)


class Gated(_Through):
    """Delays updates, and optionally reads, while it is on hold."""

    def __init__(self) -> None:
        super().__init__()
        self._open = asyncio.Event()
        self._open.set()
        self._reads = False
        self._passing = 0
        self.waiting = 0

    def hold(self, *, reads: bool = False, after: int = 0) -> None:
        """Delay operations from now on, after ``after`` more."""
        self._reads, self._passing = reads, after
        self._open.clear()

    def release(self) -> None:
        """Let all waiting and later operations pass."""
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
    """While ``losing``, updates are not done and their outcome is unknown."""

    def __init__(self) -> None:
        super().__init__()
        self.losing = False
        self.lost = 0

    async def update_ledger(self, metadata: LedgerMetadata, expected_version: int) -> WriteResult:
        """Write, or lose the update."""
        if self.losing:
            self.lost += 1
            return Unknown("lost on purpose")
        return await self.inner.update_ledger(metadata, expected_version)


class WritesRefused(_Through):
    """While ``refuses``, updates fail after a second, and were certainly not done."""

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
