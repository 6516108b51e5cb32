"""A store whose objects are sealed: encrypted here, before the store below sees them (docs/adr/0016).

    KEY                    an object that is plain: from before, or of an archive without keys
    sealed/objects/KEY     frames of ciphertext                          written first, deleted last
    sealed/keys/KEY        the object's own key, wrapped: 112 bytes      written last, deleted first

There is a sealed object exactly where both are. One half alone is an upload that nobody has finished.

With keys, what is written is sealed, and what is plain is read if the keys say so. Without keys, what is written is
plain, and what is sealed is listed, is deleted, and cannot be read: that is ``ArchiveKeyMissing``, never "not there".

Sizes, ranges and digests are those of the plaintext. Readers and writers know of nothing else.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias, TypeVar

from cachetools import LRUCache
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from tallybook.core.batch import Buffer
from tallybook.core.errors import ArchiveKeyMissing, DamagedFile, InvalidArgument, ObjectDamaged, ObjectMissing
from tallybook.runtime.meter import Reading
from tallybook.runtime.security.archive_keys import ArchiveKeys, ArchiveKeySource, random_bytes
from tallybook.runtime.tasks import Workers

from .keys import check_key, check_prefix, check_range
from .port import ObjectInfo, ObjectStore, UnfinishedUpload, Upload
from .seal_format import (
    DATA_KEY_BYTES,
    FRAME_BYTES,
    NONCE_BYTES,
    RECORD_BYTES,
    SEALED_FRAME_BYTES,
    WrappedKey,
    decode_key,
    encode_key,
    open_frames,
    seal_frames,
    sealed_bytes,
    unwrap,
    wrap,
)
from .sealed_listing import FOLDER, KEYS, OBJECTS, halves, listing, whole
from .sealed_upload import SealedUpload

T = TypeVar("T")
Parts: TypeAlias = list[bytes]

KNOWN_SEALS: Final = 10_000
"""Objects of which it is remembered how they are opened, or that they are plain."""

_HALF: Final = "half"
"""In place of the id of an upload: a half of a sealed object, whose other half is not there."""


@dataclass(frozen=True, slots=True)
class _Seal:
    """How a sealed object is opened."""

    record: bytes
    plain_bytes: int
    cipher: AESGCM = field(repr=False)


@dataclass(frozen=True, slots=True)
class SealedObject:
    """A sealed object as it was found in the store, whatever was remembered of it."""

    plain_bytes: int
    """Of plaintext, as its key says, with which that is authenticated."""
    read: Callable[[int, int], Awaitable[bytes]]
    """Part of the plaintext, from an offset, of a size; opened with the key that was found, so that whatever is put in
    the place of the object meanwhile is found out as damage, unless it is the same."""


class SealedStore:
    """An ``ObjectStore`` over another one.

    Args:
        workers: where frames are sealed and opened.
        keys: ``None``: what is written is plain, and what is sealed cannot be read.
    """

    def __init__(self, store: ObjectStore, workers: Workers, keys: ArchiveKeySource | None) -> None:
        self._store = store
        self._workers = workers
        self._keys = keys
        self._known: LRUCache[str, _Seal | None] = LRUCache(KNOWN_SEALS)
        self._hits = 0
        self._misses = 0

    @property
    def url(self) -> str:
        """Of the store below."""
        return self._store.url

    @property
    def seals(self) -> bool:
        """Whether what is written is sealed."""
        return self._keys is not None

    def readings(self) -> dict[str, Reading]:
        """What is remembered of objects, for ``ARCHIVE_METRICS``."""
        return {
            "seals": len(self._known),
            "max_seals": KNOWN_SEALS,
            "seal_hits": self._hits,
            "seal_misses": self._misses,
        }

    async def put(self, key: str, data: Buffer) -> None:
        """Write a small object whole: its frames, then its key."""
        _check(key)
        if self._keys is None:
            await self._store.put(key, data)
            return
        data_key, size = random_bytes(DATA_KEY_BYTES), memoryview(data).nbytes
        sealed = await self._workers.run(seal_frames, AESGCM(data_key), key, 0, data, ends=True)
        await self._store.put(OBJECTS + key, sealed)
        await self._complete(key, data_key, size)

    def upload(self, key: str) -> Upload:
        """Begin a large object."""
        _check(key)
        if self._keys is None:
            return self._store.upload(key)
        return self.upload_copy(key, random_bytes(DATA_KEY_BYTES))

    def upload_copy(self, key: str, data_key: bytes) -> Upload:
        """Begin the sealed copy of a plain object, of which there may be several writers: see ``copy_data_key``.

        Args:
            data_key: the object's own key: the same for the same content, and never for other content.
        """
        _check(key)

        async def complete(plain_bytes: int) -> None:
            await self._complete(key, data_key, plain_bytes)

        return SealedUpload(self._store.upload(OBJECTS + key), self._workers, key, data_key, complete)

    async def read(self, key: str, offset: int, size: int) -> bytes:
        """Part of an object."""
        return (await self.read_many(key, [(offset, size)]))[0]

    async def read_many(self, key: str, ranges: Sequence[tuple[int, int]]) -> Parts:
        """Parts of an object, sealed or plain."""
        _check(key)
        for offset, size in ranges:
            check_range(key, offset, size)
        if not ranges:
            return []
        known = key in self._known
        try:
            return await self._read(key, ranges, await self._seal_of(key))
        except (ObjectMissing, ObjectDamaged):
            before = self._known.pop(key, None)
            if not known:
                raise
            # It may have been written anew, or been sealed.
            seal = await self._seal_of(key)
            if _record(seal) == _record(before):
                raise
            return await self._read(key, ranges, seal)

    async def info(self, key: str) -> ObjectInfo:
        """Size and age of the plaintext, told without any key."""
        _check(key)
        if self._keys is None:
            # Most likely nothing here is sealed.
            try:
                return await self._store.info(key)
            except ObjectMissing:
                if not await self._has(KEYS + key):
                    raise
        elif not await self._has(KEYS + key):
            return await self._store.info(key)
        return whole(await self._store.info(OBJECTS + key))

    async def list(self, prefix: str = "", after: str = "") -> AsyncIterator[Sequence[ObjectInfo]]:
        """Pages of what is sealed and what is plain, together in the order of keys; told without any key."""
        check_prefix(prefix)
        async for page in listing(self._store, prefix, after):
            yield page

    async def delete(self, key: str) -> None:
        """Remove an object, its key first."""
        _check(key)
        self._known.pop(key, None)
        for each in (KEYS + key, OBJECTS + key, key):
            await self._store.delete(each)

    async def unfinished_uploads(self) -> Sequence[UnfinishedUpload]:
        """Those of the store below, and halves of sealed objects."""
        found = [_outside(upload) for upload in await self._store.unfinished_uploads()]
        left = [half async for half in halves(self._store)]
        # Of what is plain, somebody may be writing a sealed copy at any time; it goes when the object goes.
        alone = [half for half in left if not await self._has(half.key)]
        return [*found, *(UnfinishedUpload(half.key, _HALF, half.modified_at_ms) for half in alone)]

    async def abort_upload(self, upload: UnfinishedUpload) -> None:
        """Remove what is there of an upload, or a half whose other half is still not there, nor a plain object."""
        _check(upload.key)
        if upload.upload_id != _HALF:
            await self._store.abort_upload(_inside(upload))
            return
        # First: whoever copies it removes it when both halves are there.
        if await self._has(upload.key):
            return
        missing = [folder for folder in (KEYS, OBJECTS) if not await self._has(folder + upload.key)]
        if missing:
            for folder in (KEYS, OBJECTS):
                await self._store.delete(folder + upload.key)

    async def close(self) -> None:
        """Close the store below."""
        await self._store.close()

    async def is_sealed(self, key: str) -> bool:
        """Whether an object is sealed; if it is there at all, it is plain otherwise."""
        _check(key)
        return self._known.get(key) is not None or await self._has(KEYS + key)

    async def any_sealed(self) -> bool:
        """Whether anything here is sealed."""
        async for page in self._store.list(KEYS):
            if page:
                return True
        return False

    @property
    def keys(self) -> ArchiveKeySource:
        """Where the keys are from.

        Raises:
            ArchiveKeyMissing: there are none.
        """
        if self._keys is None:
            raise ArchiveKeyMissing(f"{self.url}: nothing can be sealed without keys: set archive_keys")
        return self._keys

    async def current_key(self) -> str:
        """Name of the key that new objects are sealed with.

        Raises:
            ArchiveKeyMissing: there are no keys.
        """
        return (await self._current()).current

    async def find_sealed(self, key: str) -> SealedObject:
        """A sealed object as it is in the store now.

        Raises:
            ObjectMissing: it is not there, or not sealed.
            ObjectDamaged: it has fewer or more bytes than its key is for, or that key is damaged.
            ArchiveKeyMissing, NewerFormat: it cannot be opened here.
        """
        self._known.pop(_check(key), None)
        seal = await self._seal_of(key)
        if seal is None:
            raise ObjectMissing(f"{self.url}: there is no sealed object {key}")
        stored, whole_bytes = (await self._store.info(OBJECTS + key)).size_bytes, sealed_bytes(seal.plain_bytes)
        if stored != whole_bytes:
            raise ObjectDamaged(f"{self.url}: {key} is sealed in {stored} bytes, and should be in {whole_bytes}")

        async def read(offset: int, size: int) -> bytes:
            check_range(key, offset, size)
            return (await self._read_sealed(key, [(offset, size)], seal))[0]

        return SealedObject(seal.plain_bytes, read)

    async def is_plain(self, key: str) -> bool:
        """Whether there is a plain object, be there a sealed one or not."""
        return await self._has(_check(key))

    async def size_of_plain(self, key: str) -> int:
        """Size of an object that is not sealed, whatever the keys say of such, and whether there is a sealed one.

        Raises:
            ObjectMissing: there is none.
        """
        return (await self._store.info(_check(key))).size_bytes

    async def read_plain(self, key: str, offset: int, size: int) -> bytes:
        """Part of an object that is not sealed, whatever the keys say of such."""
        return await self._store.read(_check(key), offset, size)

    async def delete_plain(self, key: str) -> None:
        """Remove what is not sealed of an object."""
        await self._store.delete(_check(key))

    async def wrapping(self, key: str) -> str:
        """Name of the key that an object's own key is wrapped with.

        Raises:
            ObjectMissing, ObjectDamaged, NewerFormat: nothing says so.
        """
        return self._decoded(await self._store.read(KEYS + _check(key), 0, RECORD_BYTES), key).wrapping

    async def rewrap(self, key: str, *, change: bool = True) -> None:
        """Wrap an object's own key with the current key, or see whether that could be. The object is not touched.

        Raises:
            ObjectMissing, ObjectDamaged, NewerFormat: it has no key that could be.
            ArchiveKeyMissing: what it is wrapped with is not here.
        """
        record = await self._store.read(KEYS + _check(key), 0, RECORD_BYTES)
        found = self._decoded(record, key)
        data_key = await self._unwrapped(found, key)
        if change:
            await self._complete(key, data_key, found.plain_bytes)

    async def _complete(self, key: str, data_key: bytes, plain_bytes: int) -> None:
        """Put the key of an object beside it."""
        keys = await self._current()
        nonce = random_bytes(NONCE_BYTES)
        wrapped = wrap(data_key, keys.current, keys.keys[keys.current], nonce, plain_bytes, key)
        self._known.pop(key, None)
        await self._store.put(KEYS + key, encode_key(wrapped))

    async def _current(self) -> ArchiveKeys:
        return await self.keys.now()

    async def _seal_of(self, key: str) -> _Seal | None:
        """How an object is opened; ``None`` for one that is plain, or not there."""
        if key in self._known:
            self._hits += 1
            return self._known[key]
        if self._keys is None:
            return None
        self._misses += 1
        try:
            record = await self._store.read(KEYS + key, 0, RECORD_BYTES)
        except ObjectMissing:
            return None
        found = self._decoded(record, key)
        seal = _Seal(record, found.plain_bytes, AESGCM(await self._unwrapped(found, key)))
        self._known[key] = seal
        return seal

    def _decoded(self, record: bytes, key: str) -> WrappedKey:
        return self._checked(decode_key, record, key)

    async def _unwrapped(self, found: WrappedKey, key: str) -> bytes:
        if self._keys is None:
            raise self._no_key(key, found.wrapping)
        keys = (await self._keys.now(wanted=found.wrapping)).keys
        if found.wrapping not in keys:
            raise self._no_key(key, found.wrapping)
        return self._checked(unwrap, found, keys[found.wrapping], key)

    def _checked(self, function: Callable[..., T], *args: object) -> T:
        try:
            return function(*args)
        except DamagedFile as error:
            raise ObjectDamaged(f"{self.url}: {error.message}") from error

    def _no_key(self, key: str, wrapping: str) -> ArchiveKeyMissing:
        have = "archive_keys does not have that key" if self.seals else "archive_keys is not set here"
        return ArchiveKeyMissing(f"{self.url}: {key} is sealed with key {wrapping}, and {have}")

    async def _read(self, key: str, ranges: Sequence[tuple[int, int]], seal: _Seal | None) -> Parts:
        if seal is not None:
            return await self._read_sealed(key, ranges, seal)
        if self._keys is not None:
            await self._refuse_plain(key, self._keys)
        try:
            found = await self._store.read_many(key, ranges)
        except ObjectMissing as error:
            if self._keys is None and await self._has(KEYS + key):
                raise self._no_key(key, await self.wrapping(key)) from error
            raise
        if self._keys is not None:
            self._known[key] = None
        return found

    async def _refuse_plain(self, key: str, source: ArchiveKeySource) -> None:
        """Believe no object that somebody else may have put there, where the keys say that all are sealed.

        Raises:
            ObjectMissing: there is none.
            ObjectDamaged: there is one.
        """
        if not (await source.now()).reads_plain:
            await self._store.info(key)
            raise ObjectDamaged(f"{self.url}: {key} is not sealed, and archive_keys says that all objects are")

    async def _read_sealed(self, key: str, ranges: Sequence[tuple[int, int]], seal: _Seal) -> Parts:
        end = max(offset + size for offset, size in ranges)
        if end > seal.plain_bytes:
            raise ObjectDamaged(f"{self.url}: {key} has {seal.plain_bytes} bytes; it was to be read up to {end}")
        runs = _runs(ranges)
        stored_end = sealed_bytes(seal.plain_bytes)
        wanted = []
        for run in runs:
            begin = run.start * SEALED_FRAME_BYTES
            wanted.append((begin, min(run.stop * SEALED_FRAME_BYTES, stored_end) - begin))
        stored = await self._store.read_many(OBJECTS + key, wanted)
        return await self._workers.run(self._opened, key, seal, runs, stored, ranges)

    def _opened(
        self,
        key: str,
        seal: _Seal,
        runs: Sequence[range],
        stored: Sequence[bytes],
        ranges: Sequence[tuple[int, int]],
    ) -> Parts:
        """The ranges, out of the frames that were read for them."""
        try:
            if len(ranges) == 1:
                offset, size = ranges[0]
                skip = offset - runs[0].start * FRAME_BYTES
                return [open_frames(seal.cipher, key, runs[0], seal.plain_bytes, stored[0], skip=skip, size=size)]
            opened = [
                open_frames(seal.cipher, key, run, seal.plain_bytes, data)
                for run, data in zip(runs, stored, strict=True)
            ]
        except DamagedFile as error:
            raise ObjectDamaged(f"{self.url}: {error.message}") from error
        found, at = [], 0
        for offset, size in ranges:
            while offset // FRAME_BYTES not in runs[at]:
                at += 1
            begin = offset - runs[at].start * FRAME_BYTES
            found.append(opened[at][begin : begin + size])
        return found

    async def _has(self, key: str) -> bool:
        try:
            await self._store.info(key)
        except ObjectMissing:
            return False
        return True


def _check(key: str) -> str:
    """``key``, if it may be that of an object; what lies in the folder of what is sealed has none of its own.

    Raises:
        InvalidArgument: it may not.
    """
    if key.startswith(FOLDER):
        raise InvalidArgument(f"{key!r:.100} is where sealed objects are kept")
    check_key(OBJECTS + check_key(key))
    return key


def _record(seal: _Seal | None) -> bytes:
    return b"" if seal is None else seal.record


def _runs(ranges: Sequence[tuple[int, int]]) -> list[range]:
    """The frames that ranges touch, those next to each other together, ascending."""
    found: list[range] = []
    for offset, size in sorted(ranges):
        first, end = offset // FRAME_BYTES, (offset + size - 1) // FRAME_BYTES + 1
        if found and first <= found[-1].stop:
            found[-1] = range(found[-1].start, max(end, found[-1].stop))
        else:
            found.append(range(first, end))
    return found


def _outside(upload: UnfinishedUpload) -> UnfinishedUpload:
    """An upload of the store below as it is told here: under the key of its object."""
    for folder in (OBJECTS, KEYS):
        if upload.key.startswith(folder):
            return UnfinishedUpload(upload.key.removeprefix(folder), f"{folder}{upload.upload_id}", upload.began_at_ms)
    return upload


def _inside(upload: UnfinishedUpload) -> UnfinishedUpload:
    """The opposite."""
    for folder in (OBJECTS, KEYS):
        if upload.upload_id.startswith(folder):
            return UnfinishedUpload(folder + upload.key, upload.upload_id.removeprefix(folder), upload.began_at_ms)
    return upload
