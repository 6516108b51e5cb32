"""The object store of a simulated cluster, with the faults between it and its clients.

Each process has its own client: the production client (``RetryingStore``) over ``FaultyObjectStore`` (errors as
real stores return them) over ``BucketLink`` (the network). On the link a request travels to the store, takes effect at
one moment, and its answer travels back; either may be slow or lost. A request also lands if its sender is frozen, dead
or has timed out, perhaps much later. Sometimes the store keeps other bytes than it was sent and reports success: only a
read can tell.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from tallybook.archive.objects.memory import MemoryObjectStore
from tallybook.archive.objects.port import ObjectInfo, UnfinishedUpload
from tallybook.archive.objects.retries import RetryingStore, RetryPolicy, RetrySettings
from tallybook.archive.reader import ArchiveReader
from tallybook.client.background import client_tasks
from tallybook.core.buffers import Buffer
from tallybook.core.errors import ArchiveUnavailable, Outcome, TallybookError
from tallybook.runtime.rng import Rng
from tallybook.runtime.tasks import InlineWorkers

from ..deterministic import SimClock
from .atomic_steps import run_in_one_step
from .faulty_objects import FaultyObjectStore, ObjectFault, RandomObjectFaults

if TYPE_CHECKING:
    from .process import SimProcess

T = TypeVar("T")

TIMEOUT_SECONDS: Final = 0.4
"""How long a client waits for one answer of the store."""
LATEST_SECONDS: Final = 2.0
"""Maximum delay after which a request may still land whose sender timed out."""
PAGE_OBJECTS: Final = 4
RETRY_SETTINGS: Final = RetrySettings(
    first_pause=0.05, longest_pause=0.5, give_up_after=1.5, slowest_rate=10.0, rate_step=50.0
)
"""Retry policy of all clients, with short pauses."""
FIRST_PARTS: Final = 2
"""A torn upload has its damage in one of its first ``FIRST_PARTS`` parts."""
FOREIGN_KEY: Final = "notes/readme.txt"
"""An object that is not of this cluster, and must not be removed."""


@dataclass(slots=True)
class BucketFaults:
    """Probabilities of faults of one request or upload; times in seconds."""

    odds: dict[ObjectFault, float] = field(default_factory=dict)
    """Probability of each error that ``FaultyObjectStore`` can raise."""
    storm: float = 0.0
    lost: float = 0.0
    """A request is lost."""
    late: float = 0.0
    """A request arrives after its sender timed out."""
    slow: float = 0.0
    """An answer takes so long that the sender may time out first."""
    torn: float = 0.0
    """An upload succeeds, but the object has other or fewer bytes."""
    delay_seconds: tuple[float, float] = (0.0005, 0.01)
    behind: float = 0.0
    """How far the store's clock is behind, so that new objects look old."""


class Bucket:
    """The object store that all clients share.

    Args:
        later: calls a function after some seconds, outside any simulated process.
        note: adds a line to the trace.
        mark: called with the name of a coverage mark.
    """

    def __init__(
        self,
        rng: Rng,
        faults: BucketFaults,
        later: Callable[[float, Callable[[], object]], object],
        note: Callable[..., None],
        mark: Callable[[str], None],
    ) -> None:
        self.faults = faults
        self.store = MemoryObjectStore(SimClock(skew_us=-int(faults.behind * 1e6)), name="bucket")
        self.mark = mark
        self.away = False
        """Whether the store is unreachable."""
        self.on_removed: Callable[[str], None] = lambda _key: None
        """Called with the key of every object that is deleted."""
        self.on_request: Callable[[str, str], None] = lambda _who, _name: None
        """Called with process name and kind of every request that is sent."""
        self._rng = rng
        self._later = later
        self._note = note
        self._client_faults: list[RandomObjectFaults] = []
        self._healed = False
        run_in_one_step(lambda: self.store.put(FOREIGN_KEY, b"not of this cluster"))

    def client_store(self, process: SimProcess) -> RetryingStore:
        """The store client of one process."""
        rng = self._rng.fork(f"door {len(self._client_faults)}")
        way = BucketLink(self, process.name, rng.fork("way"))
        faults = RandomObjectFaults(rng.fork("faults"), process.clock, self.faults.odds, storm=self.faults.storm)
        faults.storm_seconds = 1.5
        self._client_faults.append(faults)
        if self._healed:
            faults.ends_at = 0.0
        faulty = FaultyObjectStore(way, faults, process.clock, timeout_seconds=TIMEOUT_SECONDS)
        return RetryingStore(faulty, RetryPolicy(process.clock, rng.fork("patience"), RETRY_SETTINGS))

    def heal(self) -> None:
        """Remove all faults; delayed requests still land."""
        self._healed = True
        self.away = False
        self.faults = BucketFaults()
        for faults in self._client_faults:
            faults.ends_at = 0.0

    def storm(self) -> None:
        """Make the store refuse all requests for a while."""
        for faults in self._client_faults:
            faults.begin_storm()

    # -- for the oracle -------------------------------------------------------------------

    def peek(self, key: str) -> bytes | None:
        """The bytes of an object; ``None`` if it does not exist or is empty."""
        info = run_in_one_step(lambda: self.store.info(key))
        if not isinstance(info, ObjectInfo) or not info.size_bytes:
            return None
        size = info.size_bytes
        return cast("bytes", run_in_one_step(lambda: self.store.read(key, 0, size)))

    def objects(self) -> list[ObjectInfo]:
        """All objects."""
        return cast("list[ObjectInfo]", run_in_one_step(lambda: _all_of(self.store)))

    def uploads(self) -> list[UnfinishedUpload]:
        """Unfinished uploads."""
        return [parts.known for parts in self.store.uploads.values()]

    # -- for links ------------------------------------------------------------------------

    def seconds(self, rng: Rng) -> float:
        """Draw the delay of one message."""
        low, high = self.faults.delay_seconds
        return low + (high - low) * rng.random()

    def send(self, seconds: float, who: str, name: str, key: str, effect: Callable[[], Coroutine[Any, Any, T]],
             answer: asyncio.Future[T] | None, back_seconds: float) -> None:  # fmt: skip
        """Execute a request after ``seconds``, and its answer ``back_seconds`` later unless that is ``None``."""

        def land() -> None:
            if self.away:
                return
            result = run_in_one_step(effect)
            failed = isinstance(result, TallybookError)
            self._note("bucket", who, name, key, type(result).__name__ if failed else "")
            if name == "delete" and not failed:
                self.on_removed(key)
            if answer is not None:
                self._later(back_seconds, lambda: _settle(answer, result))

        self._later(seconds, land)


class ProcessArchive(ArchiveReader):
    """An archive reader with its own client of the bucket; it is closed with its client."""

    def __init__(self, process: SimProcess, bucket: Bucket) -> None:
        self._background = client_tasks(f"{process.name} archive")
        super().__init__(bucket.client_store(process), InlineWorkers(), self._background)

    async def close(self) -> None:
        """See the port."""
        await self._background.close()


def _settle(answer: asyncio.Future[T], result: T | TallybookError) -> None:
    if answer.done():
        return
    if isinstance(result, TallybookError):
        answer.set_exception(result)
    else:
        answer.set_result(result)


async def _all_of(store: MemoryObjectStore, prefix: str = "", after: str = "") -> list[ObjectInfo]:
    return [found async for page in store.list(prefix, after) for found in page]


class BucketLink:
    """An ``ObjectStore`` behind a network with delays and losses. One for each process."""

    def __init__(self, bucket: Bucket, who: str, rng: Rng) -> None:
        self._bucket = bucket
        self._who = who
        self._rng = rng
        self._store = bucket.store

    @property
    def url(self) -> str:
        """See the port."""
        return self._store.url

    async def put(self, key: str, data: Buffer) -> None:
        """See the port."""
        body = bytes(data)
        await self.ask("put", key, lambda: self._store.put(key, body), changes=True)

    def upload(self, key: str) -> _SentUpload:
        """See the port."""
        torn_part = self._rng.randint(0, FIRST_PARTS - 1) if self._rng.random() < self._bucket.faults.torn else None
        return _SentUpload(self, key, self._store.upload(key), torn_part, self._bucket.mark)

    async def read(self, key: str, offset: int, size: int) -> bytes:
        """See the port."""
        return await self.ask("read", key, lambda: self._store.read(key, offset, size))

    async def read_many(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """See the port."""
        return await self.ask("read", key, lambda: self._store.read_many(key, ranges))

    async def info(self, key: str) -> ObjectInfo:
        """See the port."""
        return await self.ask("info", key, lambda: self._store.info(key))

    async def list(self, prefix: str = "", after: str = "") -> AsyncIterator[Sequence[ObjectInfo]]:
        """See the port. Each page shows the objects at the moment of its request."""

        async def page() -> list[ObjectInfo]:
            return (await _all_of(self._store, prefix, after))[:PAGE_OBJECTS]

        while found := await self.ask("list", after, page):
            yield found
            after = found[-1].key

    async def delete(self, key: str) -> None:
        """See the port."""
        await self.ask("delete", key, lambda: self._store.delete(key), changes=True)

    async def unfinished_uploads(self) -> Sequence[UnfinishedUpload]:
        """See the port."""

        async def look() -> Sequence[UnfinishedUpload]:
            return await self._store.unfinished_uploads()

        return await self.ask("unfinished_uploads", "", look)

    async def abort_upload(self, upload: UnfinishedUpload) -> None:
        """See the port."""
        await self.ask("abort_upload", upload.key, lambda: self._store.abort_upload(upload), changes=True)

    async def close(self) -> None:
        """See the port; nothing is open."""

    async def ask(
        self, name: str, key: str, effect: Callable[[], Coroutine[Any, Any, T]], *, changes: bool = False
    ) -> T:
        """Send one request to the store and return its answer.

        Raises:
            ArchiveUnavailable: no answer. A change may have been made, or may still be made.
        """
        bucket, rng, faults = self._bucket, self._rng, self._bucket.faults
        bucket.on_request(self._who, name)
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        there, back, draw = bucket.seconds(rng), bucket.seconds(rng), rng.random()
        if draw < faults.late:
            bucket.mark("bucket: a request lands late")
            bucket.send(TIMEOUT_SECONDS + LATEST_SECONDS * rng.random(), self._who, name, key, effect, None, 0.0)
        elif draw - faults.late < faults.slow:
            bucket.send(there, self._who, name, key, effect, answer, 2 * TIMEOUT_SECONDS * rng.random())
        elif draw - faults.late - faults.slow >= faults.lost:
            bucket.send(there, self._who, name, key, effect, answer, back)
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                return await answer
        except TimeoutError as error:
            outcome = Outcome.UNKNOWN if changes else Outcome.NOT_DONE
            raise ArchiveUnavailable(f"{name} {key}: no answer", outcome=outcome) from error


class _SentUpload:
    """An ``Upload`` over a ``BucketLink``; the store may corrupt one of its parts."""

    def __init__(
        self, way: BucketLink, key: str, upload: Any, torn_part: int | None, mark: Callable[[str], None]
    ) -> None:
        self._way = way
        self._key = key
        self._upload = upload
        self._torn_part = torn_part
        self._mark = mark
        self._parts = 0

    async def write(self, data: Buffer) -> None:
        """See the port."""
        body = bytes(data)
        if self._parts == self._torn_part and body:
            self._mark("bucket: keeps other bytes than it was sent")
            half = len(body) // 2
            body = body[:half] if len(body) % 2 else body[:half] + bytes([body[half] ^ 1]) + body[half + 1 :]
        self._parts += 1
        await self._way.ask("write", self._key, lambda: self._upload.write(body))

    async def finish(self) -> None:
        """See the port."""
        await self._way.ask("finish", self._key, self._upload.finish, changes=True)

    async def abort(self) -> None:
        """See the port. If the request is lost, the upload stays unfinished."""
        try:
            await self._way.ask("abort", self._key, self._upload.abort)
        except ArchiveUnavailable:
            self._mark("bucket: an upload is left behind")
