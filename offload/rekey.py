"""Gives all sealed objects the current key, and seals those that are plain.

A sealed object's own key is wrapped with a key of ``archive_keys``. To rotate that is to wrap it anew: 112 bytes for
each object, whatever its size. Each is replaced in one request, and whoever reads meanwhile has either of the two,
which open the same object. So it may be cut off anywhere; what is done is left out the next time.

A plain object is sealed by copying it: its sealed copy counts as soon as it has its key, and only when all of it was
read back the plain one is removed. The own key of the copy follows from the content, so all who copy an object write
the same frames, under the same key: it does not matter how many runs there are, nor when what a run has sent that was
stopped arrives. For that, the content is read twice; what has changed meanwhile is not sealed.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

from tallybook.archive.manifest import MANIFEST_KEY
from tallybook.archive.objects.port import ObjectInfo, Upload
from tallybook.archive.objects.probe import OBJECT_ERRORS, ObjectPass, spread
from tallybook.archive.objects.seal_format import copy_data_key
from tallybook.archive.objects.sealed import SealedObject
from tallybook.archive.records import RECORDS_KEY
from tallybook.archive.schema import object_id_of
from tallybook.core.errors import ObjectDamaged, ObjectMissing, check
from tallybook.core.limits import MIB
from tallybook.runtime.logging import logger

_REPLACED: Final = (MANIFEST_KEY, RECORDS_KEY)
"""Objects that offloaders replace: they are sealed the next time, and hold other bytes then."""

_log = logger("offload")

PIECE_BYTES: Final = 4 * MIB
"""Of plaintext, read and digested at a time: copies by runs that differ in this have different keys."""

CURRENT: Final = "current"
REWRAPPED: Final = "rewrapped"
PLAIN: Final = "plain"
SEALED: Final = "sealed"
FAILED: Final = "failed"


class Sealing(Protocol):
    """What of a sealed store is wanted here."""

    async def find_sealed(self, key: str) -> SealedObject:
        """A sealed object, as it is in the store now."""

    def upload_copy(self, key: str, data_key: bytes) -> Upload:
        """Begin the sealed copy of a plain object."""

    def list(self, prefix: str = "", after: str = "") -> AsyncIterator[Sequence[ObjectInfo]]:
        """Pages of all objects."""

    async def wrapping(self, key: str) -> str:
        """Name of the key that an object's own key is wrapped with."""

    async def rewrap(self, key: str, *, change: bool = True) -> None:
        """Wrap it with the current key, or see whether that could be."""

    async def is_sealed(self, key: str) -> bool:
        """Whether an object is sealed."""

    async def is_plain(self, key: str) -> bool:
        """Whether there is a plain object, be there a sealed one or not."""

    async def size_of_plain(self, key: str) -> int:
        """Size of an object that is not sealed."""

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


async def rekey(
    store: Sealing, current: str, *, change: bool, seal_plain: bool, copy_key: bytes = b""
) -> AsyncIterator[Rekeyed]:
    """Look at each object, and give it the key ``current`` if it has another one.

    Args:
        change: if not, what would be done is told, and nothing is done.
        seal_plain: whether objects that are plain are sealed, or only told.
        copy_key: what the own keys of sealed copies follow from: the same for all who copy (``archive/copy_key.py``).

    Raises:
        ArchiveUnavailable, ArchiveDenied: the store does not answer.
    """
    check(bool(copy_key) or not (change and seal_plain), "sealed copies have keys that follow from a key")
    asked = ObjectPass(store)
    async for page in store.list():
        for found in spread(page):
            if found.key in _REPLACED:
                if not await store.is_sealed(found.key):
                    continue  # an offloader with keys seals it when it next replaces it
                # A plain one beside it is an older one.
                if change and seal_plain and await store.is_plain(found.key):
                    await store.delete_plain(found.key)
            elif object_id_of(found.key) is None:
                continue
            try:
                sealing = seal_plain and found.key not in _REPLACED
                one = partial(_one, store, found, current, change=change, seal_plain=sealing, copy_key=copy_key)
                done = await asked.ask(one)
            except ObjectMissing:
                continue  # removed since the listing
            except OBJECT_ERRORS as error:
                if not await asked.concerns_one_object(error):
                    raise
                _log.warning("an object keeps the key that it has", object=found.key, error=error.message)
                done = Rekeyed(found.key, FAILED, problem=error.message)
            yield done


async def _one(
    store: Sealing, found: ObjectInfo, current: str, *, change: bool, seal_plain: bool, copy_key: bytes
) -> Rekeyed:
    key = found.key
    if not await store.is_sealed(key):
        if seal_plain and change:
            await _seal(store, key, copy_key)
        return Rekeyed(key, SEALED if seal_plain else PLAIN)
    before, outcome = await store.wrapping(key), CURRENT
    if before != current:
        await store.rewrap(key, change=change)
        outcome = REWRAPPED
        if change:
            left = await store.wrapping(key)
            if left != current:
                # It was changed once more while this went on: the next run gives it what is current then.
                problem = f"{key}: the current key is another one by now: run it again"
                return Rekeyed(key, FAILED, left, problem)
    if seal_plain and await store.is_plain(key):
        # Of a run that was stopped, or of one that is at it.
        outcome = SEALED
        if change:
            await _remove_plain(store, key)
    return Rekeyed(key, outcome, before)


async def _seal(store: Sealing, key: str, copy_key: bytes) -> None:
    """Copy a plain object into a sealed one of the same name, and remove the plain one.

    Raises:
        ObjectMissing: somebody has removed it meanwhile.
        ObjectDamaged: it does not stay as it is, or what is read back is not what was written.
    """
    plain_bytes = await store.size_of_plain(key)
    ranges = _ranges(plain_bytes)
    digests = [_digest(await store.read_plain(key, offset, size)) for offset, size in ranges]
    upload, finished = store.upload_copy(key, copy_data_key(copy_key, key, digests)), False
    try:
        for (offset, size), digest in zip(ranges, digests, strict=True):
            piece = await store.read_plain(key, offset, size)
            # Never seal with this key what it was not made for.
            if _digest(piece) != digest:
                raise ObjectDamaged(f"{key}: it changed while it was sealed; the plain object stays")
            await upload.write(piece)
        await upload.finish()
        finished = True
    finally:
        if not finished:
            await upload.abort()
    sealed = await _whole_copy(store, key, plain_bytes)
    for (offset, size), digest in zip(ranges, digests, strict=True):
        if _digest(await sealed.read(offset, size)) != digest:
            raise ObjectDamaged(f"{key}: what is read back is not what was sealed; the plain object stays")
    await store.delete_plain(key)


async def _remove_plain(store: Sealing, key: str) -> None:
    """Remove a plain object of which there is a sealed copy, if they have the same in them.

    Raises:
        ObjectDamaged: they have not.
    """
    try:
        # Not as the listing has it, which tells the size of the sealed object.
        plain_bytes = await store.size_of_plain(key)
    except ObjectMissing:
        return  # another run has just removed it
    sealed = await _whole_copy(store, key, plain_bytes)
    for offset, size in _ranges(plain_bytes):
        try:
            piece = await store.read_plain(key, offset, size)
        except ObjectMissing:
            return
        if piece != await sealed.read(offset, size):
            raise ObjectDamaged(f"{key}: a plain object is there, too, and has something else in it: both stay")
    await store.delete_plain(key)


async def _whole_copy(store: Sealing, key: str, plain_bytes: int) -> SealedObject:
    """The sealed copy of a plain object, if it is as long: what is behind the end of either is compared with nothing.

    Raises:
        ObjectDamaged: it is not, or it is not all there.
    """
    sealed = await store.find_sealed(key)
    if sealed.plain_bytes != plain_bytes:
        raise ObjectDamaged(
            f"{key}: a plain object of {plain_bytes} bytes is there, too, and the sealed one is one of "
            f"{sealed.plain_bytes}: both stay"
        )
    return sealed


def _digest(piece: bytes) -> bytes:
    return hashlib.sha256(piece).digest()


def _ranges(size: int) -> list[tuple[int, int]]:
    return [(offset, min(PIECE_BYTES, size - offset)) for offset in range(0, size, PIECE_BYTES)]
