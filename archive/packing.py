"""Writes one archive object: batches in from a source, parts out to the store, and everything read back.

    source (bookies, or other objects) --> ObjectEncoder, on a worker thread --> Upload, part by part
                                                                                    |
    receipts <-- ObjectCheck, on a worker thread <-- the whole object, read back <--'

The memory is that of a row group and a few parts, whatever the size of the ledgers.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final, TypeAlias

from tallybook.core.batch import BatchHeader, Buffer
from tallybook.core.errors import DamagedFile, InvalidBatch, ObjectDamaged
from tallybook.core.limits import MIB
from tallybook.metadata.archived import IndexPart, Receipt
from tallybook.runtime.tasks import Workers

from .index_codec import Directory, read_batches, read_directory, read_pages
from .object_check import Found, ObjectCheck
from .object_encoder import EncodedObject, EncoderOptions, ObjectEncoder
from .objects.port import ObjectStore, Upload

Batches: TypeAlias = Sequence[tuple[BatchHeader, Buffer]]

READ_BACK_BYTES: Final = 8 * MIB
"""Largest range of an object that is read back at a time."""


@dataclass(frozen=True, slots=True)
class Source:
    """A closed ledger to be archived: its metadata as the store keeps them, and its verified batches in order."""

    ledger_id: int
    metadata: bytes
    batches: Callable[[], AsyncGenerator[Batches, None]]


async def write_object(
    store: ObjectStore,
    workers: Workers,
    sources: Sequence[Source],
    *,
    object_id: str,
    key: str,
    created_at_ms: int,
    options: EncoderOptions,
) -> EncodedObject:
    """Stream ``sources``, in the order of their ids, into a new object. Nothing is left behind if it fails.

    Raises:
        ArchiveUnavailable, ArchiveDenied: the store does not take it.
        Whatever a source raises.
    """
    encoder = ObjectEncoder(object_id, created_at_ms, options)
    upload = store.upload(key)
    finished = False
    try:
        for source in sources:
            encoder.begin(source.ledger_id, source.metadata)
            async with aclosing(source.batches()) as groups:
                async for batches in groups:
                    await _send(upload, await workers.run(_add, encoder, batches))
            encoder.end()
        encoded, rest = await workers.run(_finish, encoder)
        await _send(upload, rest)
        await upload.finish()
        finished = True
    finally:
        if not finished:
            await upload.abort()
    return encoded


async def read_back(store: ObjectStore, workers: Workers, key: str, encoded: EncodedObject) -> dict[int, Found]:
    """Read the whole object and compare it with what was written; return what it holds, by ledger.

    Raises:
        ObjectMissing, ObjectDamaged: it is not there, or not as it was written.
        ArchiveUnavailable, ArchiveDenied: the store does not give it.
    """
    sha256, found = await check_object(store, workers, key, encoded.object_bytes, encoded.directory_part)
    if sha256 != encoded.sha256:
        raise ObjectDamaged(f"{store.url}: {key} has other bytes than were written")
    return found


async def check_object(
    store: ObjectStore, workers: Workers, key: str, object_bytes: int, directory_part: IndexPart
) -> tuple[bytes, dict[int, Found]]:
    """Read a whole object and check all of it; return the SHA-256 of its bytes and what it holds, by ledger.

    Raises:
        As ``read_back``.
    """
    try:
        size = (await store.info(key)).size_bytes
        if size != object_bytes:
            raise ObjectDamaged(f"{store.url}: {key} has {size} bytes instead of {object_bytes}")
        check = await _opened(store, workers, key, object_bytes, directory_part)
        for offset in range(0, object_bytes, READ_BACK_BYTES):
            chunk = await store.read(key, offset, min(READ_BACK_BYTES, object_bytes - offset))
            await workers.run(check.feed, chunk)
        return await workers.run(check.end)
    except (DamagedFile, InvalidBatch) as error:
        raise ObjectDamaged(f"{store.url}: {error.message}") from error


async def _opened(
    store: ObjectStore, workers: Workers, key: str, object_bytes: int, directory_part: IndexPart
) -> ObjectCheck:
    """The check of an object, with the index that it needs: as it is in the store, not as it was written."""
    stored = await store.read(key, directory_part.offset, directory_part.stored_bytes)
    directory = await workers.run(read_directory, stored, directory_part, key, object_bytes)
    pages = [group.pages for group in directory.row_groups]
    runs = [run.batches for ledger in directory.ledgers for run in ledger.runs]
    parts = await store.read_many(key, [(part.offset, part.stored_bytes) for part in (*pages, *runs)])
    return await workers.run(_check_of, directory, parts, key, object_bytes)


def _check_of(directory: Directory, stored: Sequence[bytes], key: str, object_bytes: int) -> ObjectCheck:
    parts = iter(stored)
    return ObjectCheck(
        directory,
        [read_pages(next(parts), group, key, object_bytes) for group in directory.row_groups],
        [[read_batches(next(parts), run, key) for run in ledger.runs] for ledger in directory.ledgers],
        key,
    )


def receipts(encoded: EncodedObject, found: dict[int, Found], key: str, archived_at_ms: int) -> dict[int, Receipt]:
    """A receipt for each ledger of an object that was read back."""
    directory: Directory = encoded.directory
    return {
        ledger_id: Receipt(
            object_id=directory.object_id,
            key=key,
            object_bytes=encoded.object_bytes,
            object_sha256=encoded.sha256,
            index=encoded.directory_part,
            entries=ledger.entries,
            payload_bytes=ledger.payload_bytes,
            rolling_crc=ledger.rolling_crc,
            archived_at_ms=archived_at_ms,
        )
        for ledger_id, ledger in found.items()
    }


def _add(encoder: ObjectEncoder, batches: Batches) -> list[bytes]:
    for header, batch in batches:
        encoder.add(batch, header)
    return encoder.take()


def _finish(encoder: ObjectEncoder) -> tuple[EncodedObject, list[bytes]]:
    encoded = encoder.finish()
    return encoded, encoder.take()


async def _send(upload: Upload, chunks: list[bytes]) -> None:
    for chunk in chunks:
        await upload.write(chunk)
