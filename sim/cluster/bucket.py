"""The object store of a simulated cluster, and all that can happen between it and its users.

Every process has a *door* to it: the store that users of archives see in production (``PatientStore``), over one that
fails as real ones have been seen to (``FaultyStore``), over the way there. On the way, a request travels to
the store, takes effect there at one moment, and its answer travels back; either may be slow, or be lost. A
request that was sent lands also if its sender is frozen, dead, or has given up waiting, and then perhaps much later.
Sometimes the store itself keeps other bytes than it was sent, and says that all is well: only who reads them knows.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from tallybook.archive.objects.faulty import Fault, FaultyStore, RandomFaults
from tallybook.archive.objects.memory import MemoryStore
from tallybook.archive.objects.patience import Patience, PatienceSettings
from tallybook.archive.objects.patient import PatientStore
from tallybook.archive.objects.port import ObjectInfo, UnfinishedUpload
from tallybook.core.batch import Buffer
from tallybook.core.errors import ArchiveUnavailable, Outcome, TallybookError
from tallybook.runtime.deterministic import SimClock
from tallybook.runtime.rng import Rng

from .at_once import at_once

if TYPE_CHECKING:
    from .process import SimProcess

T = TypeVar("T")

TIMEOUT_SECONDS: Final = 0.4
"""How long a user waits for one answer of the store."""
LATEST_SECONDS: Final = 2.0
"""How late a request may still land whose sender has given up waiting."""
PAGE_OBJECTS: Final = 4
PATIENCE: Final = PatienceSettings(
    first_pause=0.05, longest_pause=0.5, give_up_after=1.5, slowest_rate=10.0, rate_step=50.0
)
"""Short, as all waits here are."""
FIRST_PARTS: Final = 2
"""An upload that is torn is torn in one of so many parts that come first."""
FOREIGN_KEY: Final = "notes/readme.txt"
"""An object of somebody else."""


@dataclass(slots=True)
class BucketFaults:
    """Chances of what goes wrong with one request, or with one upload; times in seconds."""

    odds: dict[Fault, float] = field(default_factory=dict)
    """Of what the store, or the way, says that is not so."""
    storm: float = 0.0
    lost: float = 0.0
    """A request does not arrive."""
    late: float = 0.0
    """It arrives after its sender has given up."""
    slow: float = 0.0
    """Its answer takes so long that the sender may give up before."""
    torn: float = 0.0
    """An upload ends well, and the object has other bytes, or fewer."""
    delay_seconds: tuple[float, float] = (0.0005, 0.01)
    behind: float = 0.0
    """The store's clock is so far behind: to others, whatever they have just written is old."""


class Bucket:
    """What all doors lead to.

    Args:
        later: lets something happen after so many seconds in which no process has a hand.
        note: adds a line to the trace.
        mark: told of rare branches that were taken.
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
        self.store = MemoryStore(SimClock(skew_us=-int(faults.behind * 1e6)), name="bucket")
        self.mark = mark
        self.away = False
        """Nothing arrives."""
        self.on_removed: Callable[[str], None] = lambda _key: None
        """Told of every object that is gone, as it goes."""
        self.on_request: Callable[[str, str], None] = lambda _who, _name: None
        """Told who sends which request, as it leaves."""
        self._rng = rng
        self._later = later
        self._note = note
        self._doors: list[RandomFaults] = []
        self._healed = False
        at_once(lambda: self.store.put(FOREIGN_KEY, b"not of this cluster"))

    def door(self, process: SimProcess) -> PatientStore:
        """The store as this process sees it."""
        rng = self._rng.fork(f"door {len(self._doors)}")
        way = Way(self, process.name, rng.fork("way"))
        faults = RandomFaults(rng.fork("faults"), process.clock, self.faults.odds, storm=self.faults.storm)
        faults.storm_seconds = 1.5
        self._doors.append(faults)
        if self._healed:
            faults.ends_at = 0.0
        faulty = FaultyStore(way, faults, process.clock, timeout_seconds=TIMEOUT_SECONDS)
        return PatientStore(faulty, Patience(process.clock, rng.fork("patience"), PATIENCE))

    def heal(self) -> None:
        """Nothing goes wrong any more; what is late still lands."""
        self._healed = True
        self.away = False
        self.faults = BucketFaults()
        for door in self._doors:
            door.ends_at = 0.0

    def storm(self) -> None:
        """From now on the store refuses everybody for a while."""
        for door in self._doors:
            door.begin_storm()

    # -- for those who know it all --------------------------------------------------------

    def peek(self, key: str) -> bytes | None:
        """The bytes of an object, if it is there."""
        info = at_once(lambda: self.store.info(key))
        if not isinstance(info, ObjectInfo) or not info.size_bytes:
            return None
        size = info.size_bytes
        return cast("bytes", at_once(lambda: self.store.read(key, 0, size)))

    def objects(self) -> list[ObjectInfo]:
        """Everything that is there."""
        return cast("list[ObjectInfo]", at_once(lambda: _all_of(self.store)))

    def uploads(self) -> list[UnfinishedUpload]:
        """What was begun and did not end."""
        return [parts.known for parts in self.store.uploads.values()]

    # -- for ways -------------------------------------------------------------------------

    def seconds(self, rng: Rng) -> float:
        """How long a message takes."""
        low, high = self.faults.delay_seconds
        return low + (high - low) * rng.random()

    def send(self, seconds: float, who: str, name: str, key: str, effect: Callable[[], Coroutine[Any, Any, T]],
             answer: asyncio.Future[T] | None, back_seconds: float) -> None:  # fmt: skip
        """Let a request land after a while, and its answer come back after another, if anybody waits for it."""

        def land() -> None:
            if self.away:
                return
            result = at_once(effect)
            failed = isinstance(result, TallybookError)
            self._note("bucket", who, name, key, type(result).__name__ if failed else "")
            if name == "delete" and not failed:
                self.on_removed(key)
            if answer is not None:
                self._later(back_seconds, lambda: _settle(answer, result))

        self._later(seconds, land)


def _settle(answer: asyncio.Future[T], result: T | TallybookError) -> None:
    if answer.done():
        return
    if isinstance(result, TallybookError):
        answer.set_exception(result)
    else:
        answer.set_result(result)


async def _all_of(store: MemoryStore, prefix: str = "", after: str = "") -> list[ObjectInfo]:
    return [found async for page in store.list(prefix, after) for found in page]


class Way:
    """An ``ObjectStore`` that is some way off. One for each process."""

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
        """Page by page, each as things are when it is asked for."""

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
        """Nothing is open."""

    async def ask(
        self, name: str, key: str, effect: Callable[[], Coroutine[Any, Any, T]], *, changes: bool = False
    ) -> T:
        """Carry one request to the store, and its answer back.

        Raises:
            ArchiveUnavailable: there was no answer. A change may have been made, or may still be made.
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
    """An ``Upload`` whose parts travel; one of them may be kept as something else."""

    def __init__(self, way: Way, key: str, upload: Any, torn_part: int | None, mark: Callable[[str], None]) -> None:
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
        """See the port: what does not arrive leaves the upload behind."""
        try:
            await self._way.ask("abort", self._key, self._upload.abort)
        except ArchiveUnavailable:
            self._mark("bucket: an upload is left behind")
