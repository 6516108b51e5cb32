"""An object store that fails in every way in which real ones have been seen to fail.

``FaultyObjectStore`` wraps a store. Before each operation it asks its fault source which fault to inject:
``RandomObjectFaults`` in a simulation. The wrapper is deterministic, and waits only on the clock that it is given.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, Protocol, TypeVar

from tallybook.archive.objects.port import ObjectInfo, ObjectStore, UnfinishedUpload, Upload
from tallybook.core.buffers import Buffer
from tallybook.core.errors import ArchiveBusy, ArchiveDenied, ArchiveUnavailable, ObjectMissing, Outcome
from tallybook.runtime.clock import Clock
from tallybook.runtime.rng import Rng

T = TypeVar("T")


class ObjectFault(Enum):
    """Fault of one operation. Each kind applies to some operations only (``fits``)."""

    FAILED = "failed"
    """A server error; nothing was done."""
    ANSWER_LOST = "answer lost"
    """It was done, but the answer is a server error."""
    TIMED_OUT = "timed out"
    """No answer for ``timeout_seconds``; it was not done."""
    BUSY = "busy"
    """Refused because of too many requests."""
    DENIED = "denied"
    """Refused because of missing permissions."""
    SHORT = "short"
    """A read returns fewer bytes than requested, which violates the port."""
    STALE = "stale"
    """A read returns wrong bytes, in the right number."""
    MISSING = "missing"
    """The object is reported as missing, once."""
    LEFT_BEHIND = "left behind"
    """An upload stays unfinished: its finish fails, and its abort fails without an error."""


READS: Final = ("read", "info")
CHANGES: Final = ("put", "finish", "delete", "abort_upload")
OPERATIONS: Final = (*READS, *CHANGES, "write", "abort", "list", "unfinished_uploads")

_ANYWHERE: Final = frozenset({ObjectFault.FAILED, ObjectFault.TIMED_OUT, ObjectFault.BUSY, ObjectFault.DENIED})
_FITS: Final[Mapping[str, frozenset[ObjectFault]]] = {
    "read": _ANYWHERE | {ObjectFault.SHORT, ObjectFault.STALE, ObjectFault.MISSING},
    "info": _ANYWHERE | {ObjectFault.MISSING},
    "put": _ANYWHERE | {ObjectFault.ANSWER_LOST},
    "finish": _ANYWHERE | {ObjectFault.ANSWER_LOST, ObjectFault.LEFT_BEHIND},
    "delete": _ANYWHERE | {ObjectFault.ANSWER_LOST},
    "abort_upload": _ANYWHERE | {ObjectFault.ANSWER_LOST},
    "abort": frozenset({ObjectFault.LEFT_BEHIND}),  # abort never raises
}


def fits(operation: str, fault: ObjectFault) -> bool:
    """Whether this fault applies to this operation."""
    return fault in _FITS.get(operation, _ANYWHERE)


class ObjectFaultSource(Protocol):
    """Decides which operations fail."""

    def next(self, operation: str) -> ObjectFault | None:
        """The fault of the operation that is about to begin, one of ``OPERATIONS``."""


@dataclass
class RandomObjectFaults:
    """Injects each fault with its own probability, and sometimes a storm of Busy answers.

    Args:
        storm: probability that an operation starts a storm.
        storm_seconds: duration of a storm.
        ends_at: monotonic time of ``clock`` after which no faults are injected.
    """

    rng: Rng
    clock: Clock
    odds: Mapping[ObjectFault, float]
    storm: float = 0.0
    storm_seconds: float = 5.0
    ends_at: float = float("inf")
    seen: Counter[ObjectFault] = field(default_factory=Counter)
    _storm_until: float = 0.0

    def begin_storm(self) -> None:
        """Start a storm."""
        self._storm_until = self.clock.monotonic() + self.storm_seconds

    def next(self, operation: str) -> ObjectFault | None:
        """Draw the fault of an operation."""
        now = self.clock.monotonic()
        if now >= self.ends_at:
            return None
        if self.rng.random() < self.storm:
            self.begin_storm()
        # Draw for every fault, so that the probability of one does not change the draws of others.
        struck = [
            fault for fault in ObjectFault if self.rng.random() < self.odds.get(fault, 0.0) and fits(operation, fault)
        ]
        if now < self._storm_until and fits(operation, ObjectFault.BUSY):
            struck.insert(0, ObjectFault.BUSY)
        if not struck:
            return None
        self.seen[struck[0]] += 1
        return struck[0]


class FaultyUpload:
    """An ``Upload`` with injected faults."""

    def __init__(self, store: FaultyObjectStore, key: str, upload: Upload) -> None:
        self._store = store
        self._key = key
        self._upload = upload
        self._left_behind = False

    async def write(self, data: Buffer) -> None:
        """Write bytes, or fail."""
        await self._store.suffer("write", self._key, lambda: self._upload.write(data))

    async def finish(self) -> None:
        """Finish the upload, or fail."""
        await self._store.suffer("finish", self._key, self._upload.finish, on_left_behind=self._leave)

    async def abort(self) -> None:
        """Abort the upload, or leave it unfinished."""
        await self._store.suffer("abort", self._key, self._abort, on_left_behind=self._leave)

    async def _abort(self) -> None:
        if not self._left_behind:
            await self._upload.abort()

    def _leave(self) -> None:
        self._left_behind = True


class FaultyObjectStore:
    """An ``ObjectStore`` with faults from a fault source."""

    def __init__(
        self, store: ObjectStore, faults: ObjectFaultSource, clock: Clock, *, timeout_seconds: float = 30.0
    ) -> None:
        self._store = store
        self._faults = faults
        self._clock = clock
        self._timeout_seconds = timeout_seconds

    @property
    def url(self) -> str:
        """URL of the wrapped store."""
        return self._store.url

    async def put(self, key: str, data: Buffer) -> None:
        """Write a small object."""
        await self.suffer("put", key, lambda: self._store.put(key, data))

    def upload(self, key: str) -> FaultyUpload:
        """Begin a large object."""
        return FaultyUpload(self, key, self._store.upload(key))

    async def read(self, key: str, offset: int, size: int) -> bytes:
        """Read a part of an object, perhaps with wrong bytes."""
        return await self.suffer("read", key, lambda: self._store.read(key, offset, size), spoil=_spoilt)

    async def read_many(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Read parts of an object; they share a request, so a fault affects all of them."""

        def spoilt(fault: ObjectFault, parts: list[bytes]) -> list[bytes]:
            return [_spoilt(fault, part) for part in parts]

        return await self.suffer("read", key, lambda: self._store.read_many(key, ranges), spoil=spoilt)

    async def info(self, key: str) -> ObjectInfo:
        """Size and age."""
        return await self.suffer("info", key, lambda: self._store.info(key))

    async def list(self, prefix: str = "", after: str = "") -> AsyncIterator[Sequence[ObjectInfo]]:
        """List objects; each page may fail."""
        pages = self._store.list(prefix, after)

        async def following() -> Sequence[ObjectInfo] | None:
            return await anext(pages, None)

        while (page := await self.suffer("list", prefix, following)) is not None:
            yield page

    async def delete(self, key: str) -> None:
        """Remove an object."""
        await self.suffer("delete", key, lambda: self._store.delete(key))

    async def unfinished_uploads(self) -> Sequence[UnfinishedUpload]:
        """Unfinished uploads."""
        return await self.suffer("unfinished_uploads", "", self._store.unfinished_uploads)

    async def abort_upload(self, upload: UnfinishedUpload) -> None:
        """Remove the parts of an upload."""
        await self.suffer("abort_upload", upload.key, lambda: self._store.abort_upload(upload))

    async def close(self) -> None:
        """Close the wrapped store."""
        await self._store.close()

    async def suffer(
        self,
        operation: str,
        key: str,
        call: Callable[[], Awaitable[T]],
        *,
        spoil: Callable[[ObjectFault, T], T] = lambda _, result: result,
        on_left_behind: Callable[[], None] = lambda: None,
    ) -> T:
        """Do one operation with an injected fault, if there is one."""
        fault, what = self._faults.next(operation), f"{self.url}: {operation} {key}"
        outcome = Outcome.UNKNOWN if operation in CHANGES else Outcome.NOT_DONE
        if fault is ObjectFault.DENIED:
            raise ArchiveDenied(f"{what}: HTTP 403 AccessDenied")
        if fault is ObjectFault.BUSY:
            raise ArchiveBusy(f"{what}: HTTP 503 SlowDown")
        if fault is ObjectFault.MISSING:
            raise ObjectMissing(f"{what}: HTTP 404")
        if fault is ObjectFault.TIMED_OUT:
            await self._clock.sleep(self._timeout_seconds)
            raise ArchiveUnavailable(f"{what}: no answer", outcome=outcome)
        if fault is ObjectFault.LEFT_BEHIND:
            on_left_behind()
        if fault is ObjectFault.FAILED or (fault is ObjectFault.LEFT_BEHIND and operation == "finish"):
            raise ArchiveUnavailable(f"{what}: HTTP 500", outcome=outcome)
        result = await call()
        if fault is ObjectFault.ANSWER_LOST:
            raise ArchiveUnavailable(f"{what}: HTTP 500", outcome=outcome)
        return result if fault is None else spoil(fault, result)


def _spoilt(fault: ObjectFault, data: bytes) -> bytes:
    if fault is ObjectFault.SHORT:
        return data[: len(data) // 2]
    return bytes(byte ^ 0xFF for byte in data) if fault is ObjectFault.STALE else data
