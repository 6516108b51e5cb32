"""An object store that encrypts its objects before the store below sees them (docs/adr/0016).

    KEY                    a plain object: from before encryption, or of an archive without keys
    sealed/objects/KEY     frames of ciphertext                          written first, deleted last
    sealed/keys/KEY        the object's own key, wrapped: 112 bytes      written last, deleted first

An encrypted object exists if both exist. One alone is an unfinished upload.

With keys, writes are encrypted, and plain objects are readable if the keys permit it. Without keys, writes are plain,
and encrypted objects can be listed and deleted but not read: reads raise ``ArchiveKeyMissing``, never "missing".

Sizes, ranges and digests refer to the plaintext. Readers and writers see nothing else.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias, TypeVar

from cachetools import LRUCache
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from tallybook.core.buffers import Buffer
from tallybook.core.errors import ArchiveKeyMissing, DamagedFile, InvalidArgument, ObjectDamaged, ObjectMissing
from tallybook.runtime.security.archive_keys import ArchiveKeys, ArchiveKeySource, random_bytes
from tallybook.runtime.tasks import Workers

from ..keys import check_key, check_prefix, check_range
from ..port import ObjectInfo, ObjectStore, UnfinishedUpload, Upload
from .format import (
    DATA_KEY_BYTES,
    ENCRYPTED_FRAME_BYTES,
    FRAME_BYTES,
    NONCE_BYTES,
    RECORD_BYTES,
    WrappedKey,
    decode_key,
    encode_key,
    encrypt_frames,
    encrypted_bytes,
    open_frames,
    unwrap,
    wrap,
)
from .listing import FOLDER, KEYS, OBJECTS, halves, listing, whole
from .upload import EncryptedUpload

T = TypeVar("T")
Parts: TypeAlias = list[bytes]

MAX_CACHED_HEADERS: Final = 10_000
"""Cached headers: how an object is decrypted, or that it is plain."""

_HALF: Final = "half"
"""Used as the id of an unfinished upload: one half of an encrypted object."""


@dataclass(frozen=True, slots=True)
class _Header:
    """Header of an encrypted object, ready for decryption."""

    record: bytes
    plain_bytes: int
    cipher: AESGCM = field(repr=False)


@dataclass(frozen=True, slots=True)
class EncryptedObject:
    """An encrypted object as found in the store, without the cache."""

    plain_bytes: int
    """Plaintext size, from the authenticated header."""
    read: Callable[[int, int], Awaitable[bytes]]
    """Reads plaintext by offset and size, with the key found. If the object is replaced meanwhile by a different one,
    the read reports damage."""


class EncryptedStore:
    """Wraps an ``ObjectStore`` with encryption.

    Args:
        workers: run encryption and decryption.
        keys: ``None``: writes are plain, and encrypted objects cannot be read.
    """

    def __init__(self, store: ObjectStore, workers: Workers, keys: ArchiveKeySource | None) -> None:
        self._store = store
        self._workers = workers
        self._keys = keys
        self.headers: LRUCache[str, _Header | None] = LRUCache(MAX_CACHED_HEADERS)
        """Cached headers; ``None``: the object is plain."""
        self.header_hits = 0
        self.header_misses = 0

    @property
    def url(self) -> str:
        """URL of the store below."""
        return self._store.url

    @property
    def encrypts(self) -> bool:
        """Whether writes are encrypted."""
        return self._keys is not None

    async def put(self, key: str, data: Buffer) -> None:
        """Write a small object: its frames, then its key."""
        _check(key)
        if self._keys is None:
            await self._store.put(key, data)
            return
        data_key, size = random_bytes(DATA_KEY_BYTES), memoryview(data).nbytes
        encrypted = await self._workers.run(encrypt_frames, AESGCM(data_key), key, 0, data, ends=True)
        await self._store.put(OBJECTS + key, encrypted)
        await self._complete(key, data_key, size)

    def upload(self, key: str) -> Upload:
        """Begin a large object."""
        _check(key)
        if self._keys is None:
            return self._store.upload(key)
        return self.upload_copy(key, random_bytes(DATA_KEY_BYTES))

    def upload_copy(self, key: str, data_key: bytes) -> Upload:
        """Begin the encrypted copy of a plain object, which may have several writers: see ``copy_data_key``.

        Args:
            data_key: the object's own key: the same for the same content, and different for other content.
        """
        _check(key)

        async def complete(plain_bytes: int) -> None:
            await self._complete(key, data_key, plain_bytes)

        return EncryptedUpload(self._store.upload(OBJECTS + key), self._workers, key, data_key, complete)

    async def read(self, key: str, offset: int, size: int) -> bytes:
        """Read a range of an object."""
        return (await self.read_many(key, [(offset, size)]))[0]

    async def read_many(self, key: str, ranges: Sequence[tuple[int, int]]) -> Parts:
        """Read ranges of an object, encrypted or plain."""
        _check(key)
        for offset, size in ranges:
            check_range(key, offset, size)
        if not ranges:
            return []
        known = key in self.headers
        try:
            return await self._read(key, ranges, await self._header_of(key))
        except (ObjectMissing, ObjectDamaged):
            before = self.headers.pop(key, None)
            if not known:
                raise
            # The object may have been rewritten, or encrypted.
            header = await self._header_of(key)
            if _record(header) == _record(before):
                raise
            return await self._read(key, ranges, header)

    async def info(self, key: str) -> ObjectInfo:
        """Plaintext size and age; needs no key."""
        _check(key)
        if self._keys is None:
            # Most likely nothing is encrypted here.
            try:
                return await self._store.info(key)
            except ObjectMissing:
                if not await self._has(KEYS + key):
                    raise
        elif not await self._has(KEYS + key):
            return await self._store.info(key)
        return whole(await self._store.info(OBJECTS + key))

    async def list(self, prefix: str = "", after: str = "") -> AsyncIterator[Sequence[ObjectInfo]]:
        """Encrypted and plain objects in pages, merged by key; needs no key."""
        check_prefix(prefix)
        async for page in listing(self._store, prefix, after):
            yield page

    async def delete(self, key: str) -> None:
        """Remove an object, its key first."""
        _check(key)
        self.headers.pop(key, None)
        for each in (KEYS + key, OBJECTS + key, key):
            await self._store.delete(each)

    async def unfinished_uploads(self) -> Sequence[UnfinishedUpload]:
        """Unfinished uploads of the store below, and halves of encrypted objects."""
        found = [_outside(upload) for upload in await self._store.unfinished_uploads()]
        left = [half async for half in halves(self._store)]
        # A plain object may get an encrypted copy at any time; a half of it is deleted with the object.
        alone = [half for half in left if not await self._has(half.key)]
        return [*found, *(UnfinishedUpload(half.key, _HALF, half.modified_at_ms) for half in alone)]

    async def abort_upload(self, upload: UnfinishedUpload) -> None:
        """Remove the parts of an upload, or a half that still has no other half and no plain object."""
        _check(upload.key)
        if upload.upload_id != _HALF:
            await self._store.abort_upload(_inside(upload))
            return
        # Check this first: the copier deletes the plain object once both halves exist.
        if await self._has(upload.key):
            return
        missing = [folder for folder in (KEYS, OBJECTS) if not await self._has(folder + upload.key)]
        if missing:
            for folder in (KEYS, OBJECTS):
                await self._store.delete(folder + upload.key)

    async def close(self) -> None:
        """Close the store below."""
        await self._store.close()

    async def is_encrypted(self, key: str) -> bool:
        """Whether an object is encrypted; otherwise it is plain or missing."""
        _check(key)
        return self.headers.get(key) is not None or await self._has(KEYS + key)

    async def any_encrypted(self) -> bool:
        """Whether any object is encrypted."""
        async for page in self._store.list(KEYS):
            if page:
                return True
        return False

    @property
    def keys(self) -> ArchiveKeySource:
        """The source of keys.

        Raises:
            ArchiveKeyMissing: there are no keys.
        """
        if self._keys is None:
            raise ArchiveKeyMissing(f"{self.url}: nothing can be encrypted without keys: set archive_keys")
        return self._keys

    async def current_key(self) -> str:
        """Name of the key that encrypts new objects.

        Raises:
            ArchiveKeyMissing: there are no keys.
        """
        return (await self._current()).current

    async def find_encrypted(self, key: str) -> EncryptedObject:
        """Read the header of an encrypted object from the store.

        Raises:
            ObjectMissing: it is missing, or not encrypted.
            ObjectDamaged: its size does not match its header, or the header is damaged.
            ArchiveKeyMissing, NewerFormat: it cannot be decrypted here.
        """
        self.headers.pop(_check(key), None)
        header = await self._header_of(key)
        if header is None:
            raise ObjectMissing(f"{self.url}: there is no encrypted object {key}")
        stored, whole_bytes = (await self._store.info(OBJECTS + key)).size_bytes, encrypted_bytes(header.plain_bytes)
        if stored != whole_bytes:
            raise ObjectDamaged(f"{self.url}: the encrypted {key} has {stored} bytes instead of {whole_bytes}")

        async def read(offset: int, size: int) -> bytes:
            check_range(key, offset, size)
            return (await self._read_encrypted(key, [(offset, size)], header))[0]

        return EncryptedObject(header.plain_bytes, read)

    async def is_plain(self, key: str) -> bool:
        """Whether a plain object exists under the key, regardless of an encrypted one."""
        return await self._has(_check(key))

    async def size_of_plain(self, key: str) -> int:
        """Size of a plain object, regardless of an encrypted one and of what the keys permit.

        Raises:
            ObjectMissing: there is none.
        """
        return (await self._store.info(_check(key))).size_bytes

    async def read_plain(self, key: str, offset: int, size: int) -> bytes:
        """Read a range of a plain object, regardless of what the keys permit."""
        return await self._store.read(_check(key), offset, size)

    async def delete_plain(self, key: str) -> None:
        """Remove the plain object."""
        await self._store.delete(_check(key))

    async def wrapping(self, key: str) -> str:
        """Name of the key that an object's own key is wrapped with.

        Raises:
            ObjectMissing, ObjectDamaged, NewerFormat: the record does not exist or is unreadable.
        """
        return self._decoded(await self._store.read(KEYS + _check(key), 0, RECORD_BYTES), key).wrapping

    async def rewrap(self, key: str, *, change: bool = True) -> None:
        """Rewrap an object's own key with the current key; without ``change``, only check that it is possible.

        Raises:
            ObjectMissing, ObjectDamaged, NewerFormat: it has no readable key.
            ArchiveKeyMissing: the wrapping key is missing here.
        """
        record = await self._store.read(KEYS + _check(key), 0, RECORD_BYTES)
        found = self._decoded(record, key)
        data_key = await self._unwrapped(found, key)
        if change:
            await self._complete(key, data_key, found.plain_bytes)

    async def _complete(self, key: str, data_key: bytes, plain_bytes: int) -> None:
        """Store the wrapped key of an object."""
        keys = await self._current()
        nonce = random_bytes(NONCE_BYTES)
        wrapped = wrap(data_key, keys.current, keys.keys[keys.current], nonce, plain_bytes, key)
        self.headers.pop(key, None)
        await self._store.put(KEYS + key, encode_key(wrapped))

    async def _current(self) -> ArchiveKeys:
        return await self.keys.now()

    async def _header_of(self, key: str) -> _Header | None:
        """Header of an encrypted object; ``None`` if it is plain, or missing."""
        if key in self.headers:
            self.header_hits += 1
            return self.headers[key]
        if self._keys is None:
            return None
        self.header_misses += 1
        try:
            record = await self._store.read(KEYS + key, 0, RECORD_BYTES)
        except ObjectMissing:
            return None
        found = self._decoded(record, key)
        header = _Header(record, found.plain_bytes, AESGCM(await self._unwrapped(found, key)))
        self.headers[key] = header
        return header

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
        have = "archive_keys does not have that key" if self.encrypts else "archive_keys is not set here"
        return ArchiveKeyMissing(f"{self.url}: {key} is encrypted with key {wrapping}, and {have}")

    async def _read(self, key: str, ranges: Sequence[tuple[int, int]], header: _Header | None) -> Parts:
        if header is not None:
            return await self._read_encrypted(key, ranges, header)
        if self._keys is not None:
            await self._refuse_plain(key, self._keys)
        try:
            found = await self._store.read_many(key, ranges)
        except ObjectMissing as error:
            if self._keys is None and await self._has(KEYS + key):
                raise self._no_key(key, await self.wrapping(key)) from error
            raise
        if self._keys is not None:
            self.headers[key] = None
        return found

    async def _refuse_plain(self, key: str, source: ArchiveKeySource) -> None:
        """Refuse plain objects, which anyone may have written, if the keys say that all objects are encrypted.

        Raises:
            ObjectMissing: there is none.
            ObjectDamaged: there is one.
        """
        if not (await source.now()).reads_plain:
            await self._store.info(key)
            raise ObjectDamaged(f"{self.url}: {key} is not encrypted, and archive_keys refuses plain objects")

    async def _read_encrypted(self, key: str, ranges: Sequence[tuple[int, int]], header: _Header) -> Parts:
        end = max(offset + size for offset, size in ranges)
        if end > header.plain_bytes:
            raise ObjectDamaged(f"{self.url}: {key} has {header.plain_bytes} bytes, but it was requested up to {end}")
        runs = _runs(ranges)
        stored_end = encrypted_bytes(header.plain_bytes)
        wanted = []
        for run in runs:
            begin = run.start * ENCRYPTED_FRAME_BYTES
            wanted.append((begin, min(run.stop * ENCRYPTED_FRAME_BYTES, stored_end) - begin))
        stored = await self._store.read_many(OBJECTS + key, wanted)
        return await self._workers.run(self._opened, key, header, runs, stored, ranges)

    def _opened(
        self,
        key: str,
        header: _Header,
        runs: Sequence[range],
        stored: Sequence[bytes],
        ranges: Sequence[tuple[int, int]],
    ) -> Parts:
        """Decrypt the ranges from the frames read for them."""
        try:
            if len(ranges) == 1:
                offset, size = ranges[0]
                skip = offset - runs[0].start * FRAME_BYTES
                return [open_frames(header.cipher, key, runs[0], header.plain_bytes, stored[0], skip=skip, size=size)]
            opened = [
                open_frames(header.cipher, key, run, header.plain_bytes, data)
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
    """Return ``key`` if it is valid for an object: not in the folder of encrypted objects.

    Raises:
        InvalidArgument: it is not.
    """
    if key.startswith(FOLDER):
        raise InvalidArgument(f"{key!r:.100} is reserved for encrypted objects")
    check_key(OBJECTS + check_key(key))
    return key


def _record(header: _Header | None) -> bytes:
    return b"" if header is None else header.record


def _runs(ranges: Sequence[tuple[int, int]]) -> list[range]:
    """The frames that the ranges touch, ascending; adjacent ones merged."""
    found: list[range] = []
    for offset, size in sorted(ranges):
        first, end = offset // FRAME_BYTES, (offset + size - 1) // FRAME_BYTES + 1
        if found and first <= found[-1].stop:
            found[-1] = range(found[-1].start, max(end, found[-1].stop))
        else:
            found.append(range(first, end))
    return found


def _outside(upload: UnfinishedUpload) -> UnfinishedUpload:
    """Map an upload of the store below to the key of its object."""
    for folder in (OBJECTS, KEYS):
        if upload.key.startswith(folder):
            return UnfinishedUpload(upload.key.removeprefix(folder), f"{folder}{upload.upload_id}", upload.began_at_ms)
    return upload


def _inside(upload: UnfinishedUpload) -> UnfinishedUpload:
    """Reverse of ``_outside``."""
    for folder in (OBJECTS, KEYS):
        if upload.upload_id.startswith(folder):
            return UnfinishedUpload(folder + upload.key, upload.upload_id.removeprefix(folder), upload.began_at_ms)
    return upload
