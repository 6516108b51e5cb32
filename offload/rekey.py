"""Gives all sealed objects the current key, and seals those that are plain.

A sealed object's own key is wrapped with a key of ``archive_keys``. To rotate that is to wrap it anew: 112 bytes for
each object, whatever its size. Each is replaced in one request, and whoever reads meanwhile has either of the two,
which open the same object. So it may be cut off anywhere; what is done is left out the next time.

A plain object is sealed by copying it: its sealed copy counts as soon as it has its key, and only when all of it was
read back the plain one is removed.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from tallybook.archive.objects.port import ObjectInfo, Upload
from tallybook.archive.schema import object_id_of
from tallybook.core.errors import ArchiveKeyMissing, NewerFormat, ObjectDamaged, ObjectMissing
from tallybook.core.limits import MIB
from tallybook.runtime.logging import logger

_log = logger("offload")

PIECE_BYTES: Final = 4 * MIB

CURRENT: Final = "current"
REWRAPPED: Final = "rewrapped"
PLAIN: Final = "plain"
SEALED: Final = "sealed"
FAILED: Final = "failed"


class Sealing(Protocol):
    """What of a sealed store is wanted here."""

    async def read(self, key: str, offset: int, size: int) -> bytes:
        """Part of an object."""

    def upload(self, key: str) -> Upload:
        """Begin a large object."""

    def list(self, prefix: str = "", after: str = "") -> AsyncIterator[Sequence[ObjectInfo]]:
        """Pages of all objects."""

    async def wrapping(self, key: str) -> str:
        """Name of the key that an object's own key is wrapped with."""

    async def rewrap(self, key: str, *, change: bool = True) -> None:
        """Wrap it with the current key, or see whether that could be."""

    async def is_sealed(self, key: str) -> bool:
        """Whether an object is sealed."""

    async def read_plain(self, key: str, offset: int, size: int) -> bytes:
        """Part of an object that is not sealed."""

    async def delete_plain(self, key: str) -> None:
        """Remove what is not sealed of an object."""


@dataclass(frozen=True, slots=True)
class Rekeyed:
    """What became of one object. ``before`` is the name of the key it had; empty for none, or if nobody knows."""

    key: str
    outcome: str
    before: str = ""
    problem: str = ""


async def rekey(store: Sealing, current: str, *, change: bool, seal_plain: bool) -> AsyncIterator[Rekeyed]:
    """Look at each object, and give it the key ``current`` if it has another one.

    Args:
        change: if not, what would be done is told, and nothing is done.
        seal_plain: whether objects that are plain are sealed, or only told.

    Raises:
        ArchiveUnavailable, ArchiveDenied: the store does not answer.
    """
    async for page in store.list():
        for found in page:
            if object_id_of(found.key) is None:
                continue
            try:
                done = await _one(store, found, current, change=change, seal_plain=seal_plain)
            except ObjectMissing:
                continue  # removed since the listing
            except (ObjectDamaged, ArchiveKeyMissing, NewerFormat) as error:
                _log.warning("an object keeps the key that it has", object=found.key, error=error.message)
                done = Rekeyed(found.key, FAILED, problem=error.message)
            yield done


async def _one(store: Sealing, found: ObjectInfo, current: str, *, change: bool, seal_plain: bool) -> Rekeyed:
    key = found.key
    if not await store.is_sealed(key):
        if seal_plain and change:
            await _seal(store, found)
        return Rekeyed(key, SEALED if seal_plain else PLAIN)
    before = await store.wrapping(key)
    if before == current:
        return Rekeyed(key, CURRENT, before)
    await store.rewrap(key, change=change)
    if change:
        left = await store.wrapping(key)
        if left != current:
            # It was changed once more while this went on: the next run gives it what is current then.
            return Rekeyed(key, FAILED, left, f"{key}: the current key is another one by now: run it again")
    return Rekeyed(key, REWRAPPED, before)


async def _seal(store: Sealing, found: ObjectInfo) -> None:
    """Copy a plain object into a sealed one of the same name, and remove the plain one.

    Raises:
        ObjectMissing: somebody has removed it meanwhile.
        ObjectDamaged: what is read back is not what was written.
    """
    written, ranges = hashlib.sha256(), _ranges(found.size_bytes)
    upload, finished = store.upload(found.key), False
    try:
        for offset, size in ranges:
            piece = await store.read_plain(found.key, offset, size)
            written.update(piece)
            await upload.write(piece)
        await upload.finish()
        finished = True
    finally:
        if not finished:
            await upload.abort()
    read = hashlib.sha256()
    for offset, size in ranges:
        read.update(await store.read(found.key, offset, size))
    if read.digest() != written.digest():
        raise ObjectDamaged(f"{found.key}: what is read back is not what was sealed; the plain object stays")
    await store.delete_plain(found.key)


def _ranges(size: int) -> list[tuple[int, int]]:
    return [(offset, min(PIECE_BYTES, size - offset)) for offset in range(0, size, PIECE_BYTES)]
