"""In-memory object store: for simulations and tests.

Nothing here waits, so with a simulated clock a seed determines the run. An upload that is neither finished nor aborted
stays and is listed, as on S3.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from tallybook.core.buffers import Buffer
from tallybook.core.errors import ArchiveUnavailable, ObjectDamaged, ObjectMissing, check
from tallybook.runtime.clock import Clock

from .keys import check_key, check_prefix, check_range
from .port import ObjectInfo, UnfinishedUpload

_PAGE_OBJECTS: Final = 1000


@dataclass(frozen=True, slots=True)
class _Object:
    data: bytes
    modified_at_ms: int


@dataclass(slots=True)
class _Parts:
    known: UnfinishedUpload
    chunks: list[Buffer] = field(default_factory=list)


class MemoryUpload:
    """An ``Upload`` of a ``MemoryObjectStore``."""

    def __init__(self, store: MemoryObjectStore, key: str) -> None:
        self._store = store
        self._key = key
        self._parts: _Parts | None = None
        self._ended = False

    async def write(self, data: Buffer) -> None:
        """Keep ``data`` without copying: changes before the end change the object."""
        self._begun().chunks.append(data)

    async def finish(self) -> None:
        """Join the parts."""
        parts = self._begun()
        self._ended = True
        if self._store.uploads.pop(parts.known.upload_id, None) is None:
            raise ArchiveUnavailable(f"memory: another client aborted the upload of {self._key}")
        await self._store.put(self._key, b"".join(parts.chunks))

    async def abort(self) -> None:
        """Drop the parts."""
        self._ended = True
        if self._parts is not None:
            self._store.uploads.pop(self._parts.known.upload_id, None)

    def _begun(self) -> _Parts:
        check(not self._ended, f"memory: the upload of {self._key} has ended")
        if self._parts is None:
            self._parts = self._store.begin(self._key)
        return self._parts


class MemoryObjectStore:
    """An ``ObjectStore`` that is not persistent."""

    def __init__(self, clock: Clock, *, name: str = "") -> None:
        self._clock = clock
        self._name = name
        self._objects: dict[str, _Object] = {}
        self._uploads_begun = 0
        self.uploads: dict[str, _Parts] = {}

    @property
    def url(self) -> str:
        """``memory:`` and the name."""
        return f"memory:{self._name}"

    async def put(self, key: str, data: Buffer) -> None:
        """Store a copy of ``data``."""
        self._objects[check_key(key)] = _Object(bytes(data), self._now_ms())

    def upload(self, key: str) -> MemoryUpload:
        """Begin a large object."""
        return MemoryUpload(self, check_key(key))

    async def read(self, key: str, offset: int, size: int) -> bytes:
        """Read a range of an object."""
        check_range(key, offset, size)
        data = self._found(key).data
        if offset + size > len(data):
            raise ObjectDamaged(f"{self.url}: {key} has {len(data)} bytes, but {size} from {offset} were requested")
        return data[offset : offset + size]

    async def read_many(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Read ranges of an object."""
        return [await self.read(key, offset, size) for offset, size in ranges]

    async def info(self, key: str) -> ObjectInfo:
        """Size and age."""
        found = self._found(key)
        return ObjectInfo(key, len(found.data), found.modified_at_ms)

    async def list(self, prefix: str = "", after: str = "") -> AsyncIterator[Sequence[ObjectInfo]]:
        """Pages ordered by key, as of the first page."""
        check_prefix(prefix)
        keys = sorted(key for key in self._objects if key.startswith(prefix) and key > after)
        shown = [ObjectInfo(key, len(self._objects[key].data), self._objects[key].modified_at_ms) for key in keys]
        for at in range(0, len(shown), _PAGE_OBJECTS):
            yield shown[at : at + _PAGE_OBJECTS]

    async def delete(self, key: str) -> None:
        """Remove an object."""
        self._objects.pop(check_key(key), None)

    async def unfinished_uploads(self) -> Sequence[UnfinishedUpload]:
        """List unfinished uploads."""
        return [parts.known for parts in self.uploads.values()]

    async def abort_upload(self, upload: UnfinishedUpload) -> None:
        """Drop the parts of an upload."""
        check_key(upload.key)
        self.uploads.pop(upload.upload_id, None)

    async def close(self) -> None:
        """No-op."""

    def begin(self, key: str) -> _Parts:
        """Start an upload."""
        self._uploads_begun += 1
        known = UnfinishedUpload(key, str(self._uploads_begun), self._now_ms())
        return self.uploads.setdefault(known.upload_id, _Parts(known))

    def _found(self, key: str) -> _Object:
        found = self._objects.get(check_key(key))
        if found is None:
            raise ObjectMissing(f"{self.url}: there is no object {key}")
        return found

    def _now_ms(self) -> int:
        return self._clock.wall_us() // 1000
