"""Fault injection for metadata stores: every fault that the port permits.

``FaultyMetadataStore`` wraps one client's store. Before each operation it asks a fault source which fault to inject: a
``FaultScript`` for a test that needs an exact sequence, ``RandomMetadataFaults`` for random ones. Both are
deterministic, and so is the wrapper: it draws no random numbers and waits only on the given clock.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Final, ParamSpec, Protocol, TypeVar

from tallybook.core.errors import MetadataOutcomeUnknown, MetadataUnavailable, TallybookError
from tallybook.core.ids import NO_IDENTITY
from tallybook.metadata.ledger.model import LedgerMetadata
from tallybook.metadata.store import (
    LedgerPage,
    LedgerWatch,
    MetadataRecord,
    MetadataStore,
    RecordPage,
    Unknown,
    Versioned,
    WriteResult,
)
from tallybook.metadata.wrapped_store import WrappedStore
from tallybook.runtime.clock import Clock
from tallybook.runtime.rng import Rng

K = TypeVar("K")
P = ParamSpec("P")
T = TypeVar("T")

MAX_REMEMBERED: Final = 1_000
"""Ledgers and records whose last value is kept for stale reads."""


class MetadataFault(Enum):
    """A fault of one operation. Each applies only to operations that can suffer it."""

    UNAVAILABLE = "unavailable"
    """The operation is refused and not executed."""
    UNKNOWN_APPLIED = "unknown, applied"
    """A write takes effect, but its answer is lost."""
    UNKNOWN_LOST = "unknown, lost"
    """A write is lost before it takes effect."""
    UNKNOWN_LATE = "unknown, late"
    """A write's answer is lost, and it takes effect just before the next operation but one."""
    STALE = "stale"
    """A read that need not be linearizable returns the last value that this client saw."""
    PARTIAL = "partial"
    """A listing ends early and reports that it is incomplete."""
    DELAYED = "delayed"
    """A watch reports its next change ``watch_delay_seconds`` late."""


READS: Final = (
    "cluster_id", "next_ledger_id", "id_counter", "read_ledger", "list_ledgers", "read_cookie", "read_record",
    "list_records",
)  # fmt: skip
WRITES: Final = (
    "create_ledger", "update_ledger", "delete_ledger", "write_cookie", "delete_cookie", "write_record", "delete_record",
)  # fmt: skip
WATCHES: Final = ("changed",)


class MetadataFaultSource(Protocol):
    """Decides which faults are injected."""

    def next(self, operation: str) -> MetadataFault | None:
        """The fault for the next operation: a method name of the store, or ``changed`` for a watch."""


@dataclass
class RandomMetadataFaults:
    """Injects each fault with its own probability, drawn anew for each operation."""

    rng: Rng
    rates: Mapping[MetadataFault, float] = field(default_factory=dict)

    def next(self, operation: str) -> MetadataFault | None:
        """The first drawn fault that applies to the operation."""
        for fault in _POSSIBLE.get(operation, ()):
            if self.rng.random() < self.rates.get(fault, 0.0):
                return fault
        return None


_LOST: Final = (MetadataFault.UNKNOWN_APPLIED, MetadataFault.UNKNOWN_LOST, MetadataFault.UNKNOWN_LATE)
_POSSIBLE: Final[Mapping[str, tuple[MetadataFault, ...]]] = {
    **dict.fromkeys(READS, (MetadataFault.UNAVAILABLE,)),
    **dict.fromkeys(WRITES, (MetadataFault.UNAVAILABLE, *_LOST)),
    **dict.fromkeys(WATCHES, (MetadataFault.DELAYED,)),
    "read_ledger": (MetadataFault.UNAVAILABLE, MetadataFault.STALE),
    "list_ledgers": (MetadataFault.UNAVAILABLE, MetadataFault.PARTIAL),
    "read_record": (MetadataFault.UNAVAILABLE, MetadataFault.STALE),
    "list_records": (MetadataFault.UNAVAILABLE, MetadataFault.PARTIAL),
}


class FaultyMetadataStore(WrappedStore):
    """Wraps ``store`` and injects faults."""

    def __init__(
        self, store: MetadataStore, faults: MetadataFaultSource, clock: Clock, *, watch_delay_seconds: float = 1.0
    ) -> None:
        super().__init__(store)
        self._faults = faults
        self._clock = clock
        self._watch_delay_seconds = watch_delay_seconds
        self._seen: dict[int, Versioned] = {}
        self._seen_records: dict[str, MetadataRecord | None] = {}
        self._late: list[tuple[int, Callable[[], Awaitable[object]]]] = []

    async def _begin(self, operation: str) -> MetadataFault | None:
        """Choose the fault for ``operation``; late writes that are due take effect first."""
        due = [write for countdown, write in self._late if countdown == 0]
        self._late = [(countdown - 1, write) for countdown, write in self._late if countdown]
        for write in due:
            await _land(write)
        fault = self._faults.next(operation)
        if fault is MetadataFault.UNAVAILABLE:
            raise MetadataUnavailable(f"{operation}: refused on purpose")
        return fault

    async def land_late_writes(self) -> None:
        """Let every late write take effect now."""
        due, self._late = self._late, []
        for _, write in due:
            await _land(write)

    async def _read(self, call: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        await self._begin(call.__name__)
        return await call(*args, **kwargs)

    async def _write(self, change: str, call: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Execute ``call``, or lose its answer.

        Raises:
            MetadataOutcomeUnknown: the answer was lost.
        """
        fault = await self._begin(call.__name__)
        if fault not in _LOST:
            return await call(*args, **kwargs)
        write = partial(call, *args, **kwargs)
        if fault is MetadataFault.UNKNOWN_APPLIED:
            await _land(write)
        elif fault is MetadataFault.UNKNOWN_LATE:
            self._late.append((1, write))
        raise MetadataOutcomeUnknown(f"{change}: {fault.value}")

    async def _compare_and_set(
        self, change: str, call: Callable[P, Awaitable[WriteResult]], *args: P.args, **kwargs: P.kwargs
    ) -> WriteResult:
        try:
            return await self._write(change, call, *args, **kwargs)
        except MetadataOutcomeUnknown as error:
            return Unknown(error.message)

    async def read_ledger(self, ledger_id: int, *, linearizable: bool = False) -> Versioned:
        """See ``MetadataStore``."""
        fault = await self._begin("read_ledger")
        if fault is MetadataFault.STALE and not linearizable and ledger_id in self._seen:
            return self._seen[ledger_id]
        found = await self._store.read_ledger(ledger_id, linearizable=linearizable)
        _remember(self._seen, ledger_id, found)
        return found

    async def update_ledger(self, metadata: LedgerMetadata, expected_version: int) -> WriteResult:
        """See ``MetadataStore``."""
        # A client that wrote cannot read the earlier value any more, even if the write was refused.
        self._seen.pop(metadata.ledger_id, None)
        return await super().update_ledger(metadata, expected_version)

    async def delete_ledger(self, ledger_id: int, expected_version: int, identity: bytes = NO_IDENTITY) -> WriteResult:
        """See ``MetadataStore``."""
        self._seen.pop(ledger_id, None)
        return await super().delete_ledger(ledger_id, expected_version, identity)

    async def list_ledgers(self, after: int = -1, limit: int = 1000) -> LedgerPage:
        """See ``MetadataStore``."""
        fault = await self._begin("list_ledgers")
        page = await self._store.list_ledgers(after, limit)
        if fault is MetadataFault.PARTIAL:
            return LedgerPage(page.ledger_ids[: len(page.ledger_ids) // 2], complete=False)
        return page

    def watch_ledger(self, ledger_id: int) -> LedgerWatch:
        """See ``MetadataStore``."""
        return _DelayedWatch(self._store.watch_ledger(ledger_id), self._faults, self._clock, self._watch_delay_seconds)

    async def read_record(self, name: str, *, linearizable: bool = False) -> MetadataRecord | None:
        """See ``MetadataStore``."""
        fault = await self._begin("read_record")
        if fault is MetadataFault.STALE and not linearizable and name in self._seen_records:
            return self._seen_records[name]
        found = await self._store.read_record(name, linearizable=linearizable)
        _remember(self._seen_records, name, found)
        return found

    async def write_record(self, name: str, value: bytes, expected_version: int | None) -> WriteResult:
        """See ``MetadataStore``."""
        self._seen_records.pop(name, None)
        return await super().write_record(name, value, expected_version)

    async def delete_record(self, name: str, expected_version: int) -> WriteResult:
        """See ``MetadataStore``."""
        self._seen_records.pop(name, None)
        return await super().delete_record(name, expected_version)

    async def list_records(self, prefix: str = "", after: str = "", limit: int = 1000) -> RecordPage:
        """See ``MetadataStore``."""
        fault = await self._begin("list_records")
        page = await self._store.list_records(prefix, after, limit)
        if fault is MetadataFault.PARTIAL:
            return RecordPage(page.names[: len(page.names) // 2], complete=False)
        return page

    async def close(self) -> None:
        """See ``MetadataStore``. Late writes never land."""
        self._late.clear()
        await super().close()


class _DelayedWatch:
    def __init__(self, watch: LedgerWatch, faults: MetadataFaultSource, clock: Clock, delay_seconds: float) -> None:
        self._watch = watch
        self._faults = faults
        self._clock = clock
        self._delay_seconds = delay_seconds
        self._owed = False

    async def changed(self) -> None:
        if not self._owed:
            fault = self._faults.next("changed")
            await self._watch.changed()
            # A caller that is cancelled during the delay was not notified: the next call notifies it.
            self._owed = True
            if fault is MetadataFault.DELAYED:
                await self._clock.sleep(self._delay_seconds)
        self._owed = False

    async def close(self) -> None:
        await self._watch.close()


def _remember(seen: dict[K, T], key: K, value: T) -> None:
    """Store the last seen value, and evict the oldest one."""
    seen.pop(key, None)
    seen[key] = value
    if len(seen) > MAX_REMEMBERED:
        del seen[next(iter(seen))]


async def _land(write: Callable[[], Awaitable[object]]) -> None:
    """Execute a write whose result, success or refusal, is lost."""
    try:
        await write()
    except TallybookError:
        # The refusal is the lost answer.
        return
