"""Stops or disturbs an offloader at one of its calls to the object store or the metadata store.

    steps = CallSteps(at=17, wrong=StepFault.DIES)
    async with OffloadProcess(stage, steps, settings) as process:
        await process.run_pass()

Calls are counted from 1, in the order in which they begin. A process that dies at a call gets no more answers: this
call and all later ones are cancelled and have no effect. To die after a call, die at the next one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from enum import Enum
from types import TracebackType
from typing import Any, Final, Self, TypeVar, cast

from tallybook.archive.objects.port import ObjectInfo, ObjectStore, UnfinishedUpload, Upload
from tallybook.archive.reader import ArchiveReader
from tallybook.core.buffers import Buffer
from tallybook.core.errors import ArchiveUnavailable, MetadataUnavailable, Outcome, PeerError, StorageError
from tallybook.core.settings import OffloadSettings
from tallybook.metadata.ledger.model import LedgerMetadata
from tallybook.metadata.ledger_update import LedgerUpdater
from tallybook.metadata.store import LedgerWatch, MetadataStore, Unknown, WriteResult
from tallybook.offload.ledger_listing import LedgerListing
from tallybook.offload.mover import Mover
from tallybook.offload.offloader import Offloader
from tallybook.runtime.tasks import InlineWorkers, Tasks

from .archive_stage import ArchiveStage
from .ledger_scenario import SMALL

T = TypeVar("T")

OBJECT_CHANGES: Final = frozenset({"put", "write", "finish", "delete", "abort_upload", "abort"})
"""Calls that change the bucket."""


class StepFault(Enum):
    """Fault of a call."""

    FAILS = "fails"
    """It is not done, and its outcome is unknown."""
    ANSWER_LOST = "answer lost"
    """It is done, and its outcome is unknown."""
    DIES = "dies"
    """The process dies before the call."""


class CallSteps:
    """Counts the calls of one process and injects a fault into one of them.

    Args:
        at: number of that call; 0 for none.
    """

    def __init__(self, at: int = 0, wrong: StepFault = StepFault.FAILS) -> None:
        self._at = at
        self._wrong = wrong
        self.calls: list[str] = []
        """Names of all calls."""
        self.dead = False

    async def call(self, what: str, work: Callable[[], Awaitable[T]], lost: Callable[[str], T]) -> T:
        """Make a call; ``lost`` returns or raises what the caller sees if the answer is lost."""
        if self.dead:
            raise asyncio.CancelledError
        self.calls.append(what)
        if len(self.calls) != self._at:
            return await work()
        if self._wrong is StepFault.DIES:
            self.dead = True
            raise asyncio.CancelledError
        if self._wrong is StepFault.ANSWER_LOST:
            await work()
        return lost(f"{what}: lost on purpose, at call {self._at}")


class SteppedObjects:
    """An ``ObjectStore`` whose calls are counted."""

    def __init__(self, store: ObjectStore, steps: CallSteps) -> None:
        self._store = store
        self._steps = steps

    @property
    def url(self) -> str:
        """URL of the wrapped store."""
        return self._store.url

    async def put(self, key: str, data: Buffer) -> None:
        """See ``ObjectStore``."""
        await self.step("put", lambda: self._store.put(key, data))

    def upload(self, key: str) -> Upload:
        """See ``ObjectStore``."""
        return _SteppedUpload(self, self._store.upload(key))

    async def read(self, key: str, offset: int, size: int) -> bytes:
        """See ``ObjectStore``."""
        return await self.step("read", lambda: self._store.read(key, offset, size))

    async def read_many(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """See ``ObjectStore``."""
        return await self.step("read_many", lambda: self._store.read_many(key, ranges))

    async def info(self, key: str) -> ObjectInfo:
        """See ``ObjectStore``."""
        return await self.step("info", lambda: self._store.info(key))

    async def list(self, prefix: str = "", after: str = "") -> AsyncIterator[Sequence[ObjectInfo]]:
        """See ``ObjectStore``; each page is a step."""
        pages = self._store.list(prefix, after)

        async def following() -> Sequence[ObjectInfo] | None:
            return await anext(pages, None)

        while (page := await self.step("list", following)) is not None:
            yield page

    async def delete(self, key: str) -> None:
        """See ``ObjectStore``."""
        await self.step("delete", lambda: self._store.delete(key))

    async def unfinished_uploads(self) -> Sequence[UnfinishedUpload]:
        """See ``ObjectStore``."""
        return await self.step("unfinished_uploads", self._store.unfinished_uploads)

    async def abort_upload(self, upload: UnfinishedUpload) -> None:
        """See ``ObjectStore``."""
        await self.step("abort_upload", lambda: self._store.abort_upload(upload))

    async def close(self) -> None:
        """Do nothing: the stage closes the store."""

    async def step(self, what: str, work: Callable[[], Awaitable[T]]) -> T:
        """One call."""
        outcome = Outcome.UNKNOWN if what in OBJECT_CHANGES else Outcome.NOT_DONE

        def lost(message: str) -> T:
            raise ArchiveUnavailable(message, outcome=outcome)

        return await self._steps.call(what, work, lost)


class _SteppedUpload:
    def __init__(self, store: SteppedObjects, upload: Upload) -> None:
        self._store = store
        self._upload = upload

    async def write(self, data: Buffer) -> None:
        await self._store.step("write", lambda: self._upload.write(data))

    async def finish(self) -> None:
        await self._store.step("finish", self._upload.finish)

    async def abort(self) -> None:
        try:
            await self._store.step("abort", self._upload.abort)
        except ArchiveUnavailable:
            return  # ``abort`` raises nothing: an unfinished upload is collected later


class SteppedMetadata:
    """A ``MetadataStore`` whose calls are counted, for the calls of an offloader and its client."""

    def __init__(self, store: MetadataStore, steps: CallSteps) -> None:
        self._store = store
        self._steps = steps

    def __getattr__(self, name: str) -> Any:
        async def step(*args: Any, **kwargs: Any) -> Any:
            return await self._steps.call(name, lambda: getattr(self._store, name)(*args, **kwargs), _unavailable)

        return step

    async def update_ledger(self, metadata: LedgerMetadata, expected_version: int) -> WriteResult:
        """See ``MetadataStore``."""
        return await self._steps.call(
            "update_ledger", lambda: self._store.update_ledger(metadata, expected_version), Unknown
        )

    def watch_ledger(self, ledger_id: int) -> LedgerWatch:
        """See ``MetadataStore``."""
        return self._store.watch_ledger(ledger_id)

    async def close(self) -> None:
        """Close the wrapped store, also after the process died."""
        await self._store.close()


def _unavailable(message: str) -> Any:
    raise MetadataUnavailable(message)


class OffloadProcess:
    """An offloader with its own client, reader and stores, whose calls are counted."""

    def __init__(self, stage: ArchiveStage, steps: CallSteps, settings: OffloadSettings, name: str = "one") -> None:
        cluster, clock = stage.cluster, stage.cluster.world.clock
        rng = cluster.world.rng.fork(f"offloader {name}")
        store = SteppedObjects(stage.store, steps)
        metadata = cast("MetadataStore", SteppedMetadata(cluster.metadata.client().store, steps))
        self._tasks = Tasks(f"offloader {name}", lambda _name, _error: None)
        reader = ArchiveReader(store, InlineWorkers(), self._tasks)
        self._client = cluster.client(
            SMALL, seen_through=lambda inner: cast("MetadataStore", SteppedMetadata(inner, steps)), archive=reader
        )
        updater = LedgerUpdater(metadata, clock, rng.fork("updater"))
        mover = Mover(self._client, updater, store, InlineWorkers(), settings, clock, rng)
        self.offloader = Offloader(
            mover, LedgerListing(metadata), updater, store, reader, InlineWorkers(), settings, clock, rng
        )

    async def __aenter__(self) -> Self:
        await self._client.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.close()
        await self._tasks.close()

    async def run_pass(self) -> bool:
        """Do one pass as the service does; store errors end it early. Return whether the process lives."""
        task = self._tasks.spawn(self.offloader.run_pass(), name="round")
        await asyncio.wait([task])
        if task.cancelled():
            return False
        error = task.exception()
        if error is not None and not isinstance(error, PeerError | StorageError):
            raise error
        return True
