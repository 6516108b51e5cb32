"""Rewraps the keys of all encrypted objects with the current key, and encrypts plain objects.

An encrypted object's own key is wrapped with a key of ``archive_keys``. A rotation rewraps it: 112 bytes per object of
any size. Each record is replaced in one request; concurrent readers see either record, and both open the same object.
So a run may be interrupted anywhere; the next one skips what is done.

A plain object is encrypted by copying it: the encrypted copy counts as soon as it has its key, and the plain object is
removed only after the copy was read back. The copy's own key is derived from the content, so all runs write the same
frames under the same key: the number of runs, and late writes of an interrupted run, do not matter. For that, the
content is read twice; content that changed in between is not encrypted.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

from tallybook.archive.format.schema import object_id_of
from tallybook.archive.manifest import MANIFEST_KEY
from tallybook.archive.objects.encryption.format import copy_data_key
from tallybook.archive.objects.encryption.store import EncryptedObject
from tallybook.archive.objects.port import ObjectInfo, Upload
from tallybook.archive.objects.probe import OBJECT_ERRORS, ObjectPass, spread
from tallybook.archive.stream_records import RECORDS_KEY
from tallybook.core.errors import ObjectDamaged, ObjectMissing, check
from tallybook.core.limits import MIB
from tallybook.runtime.logging import logger

_REPLACED: Final = (MANIFEST_KEY, RECORDS_KEY)
"""Objects that offloaders replace: the next replacement is encrypted, and has other content."""

_log = logger("offload")

PIECE_BYTES: Final = 4 * MIB
"""Plaintext bytes per digest. Part of the key derivation: runs with another value derive other keys."""

CURRENT: Final = "current"
REWRAPPED: Final = "rewrapped"
PLAIN: Final = "plain"
SEALED: Final = "sealed"
FAILED: Final = "failed"


class RekeyedStore(Protocol):
    """The part of ``EncryptedStore`` that is needed here."""

    async def find_encrypted(self, key: str) -> EncryptedObject:
        """Read the header of an encrypted object from the store."""

    def upload_copy(self, key: str, data_key: bytes) -> Upload:
        """Begin the encrypted copy of a plain object."""

    def list(self, prefix: str = "", after: str = "") -> AsyncIterator[Sequence[ObjectInfo]]:
        """Pages of all objects."""

    async def wrapping(self, key: str) -> str:
        """Name of the key that an object's own key is wrapped with."""

    async def rewrap(self, key: str, *, change: bool = True) -> None:
        """Rewrap the key with the current key; without ``change``, only check that it is possible."""

    async def is_encrypted(self, key: str) -> bool:
        """Whether an object is encrypted."""

    async def is_plain(self, key: str) -> bool:
        """Whether a plain object exists, regardless of an encrypted one."""

    async def size_of_plain(self, key: str) -> int:
        """Size of a plain object."""

    async def read_plain(self, key: str, offset: int, size: int) -> bytes:
        """Read a range of a plain object."""

    async def delete_plain(self, key: str) -> None:
        """Remove the plain object."""


@dataclass(frozen=True, slots=True)
class Rekeyed:
    """Result for one object. ``before`` is the name of its former wrapping key; empty: none or unknown."""

    key: str
    outcome: str
    before: str = ""
    problem: str = ""


async def rekey(
    store: RekeyedStore, current: str, *, change: bool, seal_plain: bool, copy_key: bytes = b""
) -> AsyncIterator[Rekeyed]:
    """Rewrap each object's key with the key ``current``, if it has another one.

    Args:
        change: false: only report what would be done.
        seal_plain: whether plain objects are encrypted, or only reported.
        copy_key: source of the own keys of encrypted copies: the same for all runs (``archive/copy_key.py``).

    Raises:
        ArchiveUnavailable, ArchiveDenied: the store does not answer.
    """
    check(bool(copy_key) or not (change and seal_plain), "encrypted copies have keys that follow from a key")
    asked = ObjectPass(store)
    async for page in store.list():
        for found in spread(page):
            if found.key in _REPLACED:
                if not await store.is_encrypted(found.key):
                    continue  # an offloader with keys encrypts it with its next replacement
                # A plain object beside it is an older one.
                if change and seal_plain and await store.is_plain(found.key):
                    await store.delete_plain(found.key)
            elif object_id_of(found.key) is None:
                continue
            try:
                encrypt_plain = seal_plain and found.key not in _REPLACED
                one = partial(_one, store, found, current, change=change, seal_plain=encrypt_plain, copy_key=copy_key)
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
    store: RekeyedStore, found: ObjectInfo, current: str, *, change: bool, seal_plain: bool, copy_key: bytes
) -> Rekeyed:
    key = found.key
    if not await store.is_encrypted(key):
        if seal_plain and change:
            await _encrypt(store, key, copy_key)
        return Rekeyed(key, SEALED if seal_plain else PLAIN)
    before, outcome = await store.wrapping(key), CURRENT
    if before != current:
        await store.rewrap(key, change=change)
        outcome = REWRAPPED
        if change:
            left = await store.wrapping(key)
            if left != current:
                problem = f"{key}: the current key changed during this run: run the command again"
                return Rekeyed(key, FAILED, left, problem)
    if seal_plain and await store.is_plain(key):
        # From an interrupted run, or a concurrent one.
        outcome = SEALED
        if change:
            await _remove_plain(store, key)
    return Rekeyed(key, outcome, before)


async def _encrypt(store: RekeyedStore, key: str, copy_key: bytes) -> None:
    """Copy a plain object into an encrypted one of the same key, and remove the plain one.

    Raises:
        ObjectMissing: it was removed meanwhile.
        ObjectDamaged: it changed, or the copy read back differs from what was written.
    """
    plain_bytes = await store.size_of_plain(key)
    ranges = _ranges(plain_bytes)
    digests = [_digest(await store.read_plain(key, offset, size)) for offset, size in ranges]
    upload, finished = store.upload_copy(key, copy_data_key(copy_key, key, digests)), False
    try:
        for (offset, size), digest in zip(ranges, digests, strict=True):
            piece = await store.read_plain(key, offset, size)
            # Never encrypt other content with this derived key.
            if _digest(piece) != digest:
                raise ObjectDamaged(f"{key}: it changed while it was encrypted; the plain object is kept")
            await upload.write(piece)
        await upload.finish()
        finished = True
    finally:
        if not finished:
            await upload.abort()
    encrypted = await _whole_copy(store, key, plain_bytes)
    for (offset, size), digest in zip(ranges, digests, strict=True):
        if _digest(await encrypted.read(offset, size)) != digest:
            raise ObjectDamaged(
                f"{key}: reading back the encrypted object did not return what was written; the plain object is kept"
            )
    await store.delete_plain(key)


async def _remove_plain(store: RekeyedStore, key: str) -> None:
    """Remove a plain object that has an encrypted copy, if both have the same content.

    Raises:
        ObjectDamaged: they differ.
    """
    try:
        # Not from the listing, which has the size of the encrypted object.
        plain_bytes = await store.size_of_plain(key)
    except ObjectMissing:
        return  # another run has just removed it
    encrypted = await _whole_copy(store, key, plain_bytes)
    for offset, size in _ranges(plain_bytes):
        try:
            piece = await store.read_plain(key, offset, size)
        except ObjectMissing:
            return
        if piece != await encrypted.read(offset, size):
            raise ObjectDamaged(f"{key}: there is also a plain object, with different content: both are kept")
    await store.delete_plain(key)


async def _whole_copy(store: RekeyedStore, key: str, plain_bytes: int) -> EncryptedObject:
    """The encrypted copy of a plain object, if both have the same size.

    Raises:
        ObjectDamaged: the sizes differ, or the copy is incomplete.
    """
    encrypted = await store.find_encrypted(key)
    if encrypted.plain_bytes != plain_bytes:
        raise ObjectDamaged(
            f"{key}: there is also a plain object, which has {plain_bytes} bytes, but the encrypted one has "
            f"{encrypted.plain_bytes}: both are kept"
        )
    return encrypted


def _digest(piece: bytes) -> bytes:
    return hashlib.sha256(piece).digest()


def _ranges(size: int) -> list[tuple[int, int]]:
    return [(offset, min(PIECE_BYTES, size - offset)) for offset in range(0, size, PIECE_BYTES)]
