"""Metadata store wrapper that measures latency and counts errors; ``uri.open_metadata`` returns it.

``MeteredStore`` and ``MeteredMembership`` wrap those of a driver and forward all calls. Waits for a change are not
measured: their length depends on the changes only.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Final, ParamSpec, TypeVar

from tallybook.core.errors import MetadataConflict, MetadataOutcomeUnknown, TallybookError
from tallybook.runtime.clock import Clock
from tallybook.runtime.metrics.catalog import ErrorCounts
from tallybook.runtime.metrics.part_metrics import PartMetrics
from tallybook.runtime.metrics.usage import Meter

from .connection_status import ConnectionStatus
from .store import BadVersion, Membership, MetadataStore, Ok, WriteResult
from .wrapped_store import WrappedMembership, WrappedStore

P = ParamSpec("P")
T = TypeVar("T")


class MetadataLoad:
    """Counters and latencies of one process's metadata calls."""

    def __init__(self, clock: Clock, link: ConnectionStatus | None = None) -> None:
        self.link = link or ConnectionStatus()
        self.reads = Meter(clock)
        self.writes = Meter(clock)
        self.errors = ErrorCounts()

    async def read(self, answer: Awaitable[T]) -> T:
        """Time a read."""
        with self.reads.timing(), self._counting():
            return await answer

    async def write(self, answer: Awaitable[T]) -> T:
        """Time a write."""
        with self.writes.timing(), self._counting():
            return await answer

    async def compare_and_set(self, answer: Awaitable[WriteResult]) -> WriteResult:
        """Time a write that returns its outcome instead of raising it."""
        result = await self.write(answer)
        if not isinstance(result, Ok):
            failed = MetadataConflict if isinstance(result, BadVersion) else MetadataOutcomeUnknown
            self.errors.count(failed.wire_code)
        return result

    @contextmanager
    def _counting(self) -> Iterator[None]:
        try:
            yield
        except TallybookError as error:
            self.errors.count(error.wire_code)
            raise


METADATA_METRICS: Final = (
    PartMetrics[MetadataLoad]()
    .meter(
        "metadata_read",
        "tallybook_metadata_read",
        "Reads of the metadata store, listings included",
        lambda load: load.reads,
    )
    .meter("metadata_write", "tallybook_metadata_write", "Writes to the metadata store", lambda load: load.writes)
    .errors(
        "metadata_errors",
        "tallybook_metadata_errors_total",
        "Operations that failed; MetadataConflict: another client was first; usually retried.",
        lambda load: load.errors,
    )
    .gauge(
        "metadata_connected",
        "tallybook_metadata_connected",
        "1 while the store is reachable, else 0: the connection to ZooKeeper is lost. Always 1 with SQLite.",
        lambda load: load.link.connected,
    )
    .counter(
        "metadata_expiries",
        "tallybook_metadata_session_expiries_total",
        "Sessions that ZooKeeper has expired, with their registrations.",
        lambda load: load.link.expiries,
    )
)


class MeteredStore(WrappedStore):
    """A ``MetadataStore``."""

    def __init__(self, store: MetadataStore, load: MetadataLoad) -> None:
        super().__init__(store)
        self._load = load

    async def _read(self, call: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._load.read(call(*args, **kwargs))

    async def _write(self, change: str, call: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._load.write(call(*args, **kwargs))

    async def _compare_and_set(
        self, change: str, call: Callable[P, Awaitable[WriteResult]], *args: P.args, **kwargs: P.kwargs
    ) -> WriteResult:
        return await self._load.compare_and_set(call(*args, **kwargs))


class MeteredMembership(WrappedMembership):
    """A ``Membership``."""

    def __init__(self, membership: Membership, load: MetadataLoad) -> None:
        super().__init__(membership)
        self._load = load

    async def _read(self, call: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._load.read(call(*args, **kwargs))

    async def _write(self, change: str, call: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._load.write(call(*args, **kwargs))
