"""Writes one archive object: encodes batches from a source, uploads the bytes, and reads everything back.

    source (bookies, or other objects) --> ObjectEncoder, on worker threads --> Upload, part by part
                                                                                    |
    receipts <-- ObjectVerifier, on worker threads <-- the whole object, read back <--'

The steps are pipelined: a row group is uploaded while the next one is encoded and the one after it is collected; it is
read back while the previous one is hashed, decoded and compared. Memory is that of four row groups and a few parts, for
any size of ledgers.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np

from tallybook.core.batch import BatchHeader
from tallybook.core.buffers import Buffer
from tallybook.core.errors import DamagedFile, InvalidBatch, ObjectDamaged
from tallybook.core.limits import MIB
from tallybook.metadata.ledger.archived import IndexPart, Receipt
from tallybook.runtime.tasks import SideTask, Workers

from .encoder import EncodedObject, EncoderOptions, ObjectEncoder
from .format.index_codec import IndexRoot, read_batches, read_directory, read_pages
from .format.row_groups import read_footer
from .objects.port import ObjectStore, Upload
from .verifier import ObjectVerifier, Segment, VerifiedLedger

Batches: TypeAlias = Sequence[tuple[BatchHeader, Buffer]]

READ_BACK_BYTES: Final = 4 * MIB
"""Largest range per request of the read-back. Memory of this size is reused once freed."""

_READ_CONCURRENCY: Final = 2


@dataclass(frozen=True, slots=True)
class LedgerSource:
    """A closed ledger to be archived: its metadata as stored, and its verified batches in order."""

    ledger_id: int
    metadata: bytes
    batches: Callable[[], AsyncGenerator[Batches, None]]


async def write_object(
    store: ObjectStore,
    workers: Workers,
    sources: Sequence[LedgerSource],
    *,
    object_id: str,
    key: str,
    created_at_ms: int,
    options: EncoderOptions,
) -> EncodedObject:
    """Stream ``sources``, ascending by id, into a new object. Removes everything if it fails.

    Raises:
        ArchiveUnavailable, ArchiveDenied: the store does not accept it.
        Any error of a source.
    """
    encoder = ObjectEncoder(object_id, created_at_ms, options)
    upload = store.upload(key)
    finished = False
    try:
        async with SideTask() as sending, SideTask() as encoding:

            async def encode() -> None:
                chunks = deque(await workers.run(encoder.take))
                await sending.start(_send(upload, chunks))

            begun = 0
            for source in sources:
                encoder.begin(source.ledger_id, source.metadata)
                async with aclosing(source.batches()) as groups:
                    async for batches in groups:
                        await workers.run(_add, encoder, batches)
                        if encoder.row_groups > begun:
                            begun = encoder.row_groups
                            await encoding.start(encode())
                await workers.run(encoder.end)
            await encoding.result()
            await sending.result()
        encoded, rest = await workers.run(_finish, encoder)
        await _send(upload, deque(rest))
        await upload.finish()
        finished = True
    finally:
        if not finished:
            await upload.abort()
    return encoded


async def read_back(
    store: ObjectStore, workers: Workers, key: str, encoded: EncodedObject
) -> dict[int, VerifiedLedger]:
    """Read the whole object and compare it with what was written; returns its ledgers.

    Raises:
        ObjectMissing, ObjectDamaged: it is missing, or differs from what was written.
        ArchiveUnavailable, ArchiveDenied: the store does not return it.
    """
    sha256, found = await check_object(store, workers, key, encoded.object_bytes, encoded.directory_part)
    if sha256 != encoded.sha256:
        raise ObjectDamaged(f"{store.url}: {key} does not have the bytes that were written")
    return found


async def check_object(
    store: ObjectStore, workers: Workers, key: str, object_bytes: int, directory_part: IndexPart
) -> tuple[bytes, dict[int, VerifiedLedger]]:
    """Read and verify a whole object; returns the SHA-256 of its bytes and its ledgers.

    Raises:
        As ``read_back``.
    """
    try:
        size = (await store.info(key)).size_bytes
        if size != object_bytes:
            raise ObjectDamaged(f"{store.url}: {key} has {size} bytes instead of {object_bytes}")
        check = await _opened(store, workers, key, object_bytes, directory_part)
        segments = check.segments()
        largest = max(segment.size for segment in segments)
        rooms = [np.empty(largest, np.uint8).data for _ in range(2)]
        async with SideTask() as reading, SideTask() as hashing:
            for at, segment in enumerate(segments):
                data = await (reading.result() if at else _read(store, key, segment, rooms[0]))
                if at + 1 < len(segments):
                    await reading.start(_read(store, key, segments[at + 1], rooms[(at + 1) % 2]))
                await hashing.start(workers.run(check.hash, data))
                if segment.row_group is not None:
                    await workers.run(check.row_group, segment.row_group, segment.begin, data)
                await hashing.result()
        return await workers.run(check.end)
    except (DamagedFile, InvalidBatch) as error:
        raise ObjectDamaged(f"{store.url}: {error.message}") from error


async def _read(store: ObjectStore, key: str, segment: Segment, buffer: memoryview) -> memoryview:
    """Read a segment into ``buffer``, a few ranges at a time."""
    begins = range(segment.begin, segment.end, READ_BACK_BYTES)
    for at in range(0, len(begins), _READ_CONCURRENCY):
        ranges = [(begin, min(READ_BACK_BYTES, segment.end - begin)) for begin in begins[at : at + _READ_CONCURRENCY]]
        reads = (store.read(key, offset, size) for offset, size in ranges)
        parts = await asyncio.gather(*reads, return_exceptions=True)
        for (begin, size), part in zip(ranges, parts, strict=True):
            if isinstance(part, BaseException):
                raise part
            if len(part) != size:
                raise ObjectDamaged(f"{store.url}: reading {key} back returned {len(part)} bytes instead of {size}")
            buffer[begin - segment.begin : begin - segment.begin + size] = part
    return buffer[: segment.size]


async def _opened(
    store: ObjectStore, workers: Workers, key: str, object_bytes: int, directory_part: IndexPart
) -> ObjectVerifier:
    """The verifier of an object, with index and footer as stored."""
    begin = directory_part.offset
    tail = await store.read(key, begin, object_bytes - begin)
    directory = await workers.run(
        read_directory, tail[: directory_part.stored_bytes], directory_part, key, object_bytes
    )
    pages = [group.pages for group in directory.row_groups]
    runs = [run.batches for ledger in directory.ledgers for run in ledger.runs]
    parts = await store.read_many(key, [(part.offset, part.stored_bytes) for part in (*pages, *runs)])
    footer = memoryview(tail)[directory_part.stored_bytes :]
    return await workers.run(_check_of, directory, directory_part, footer, parts, key, object_bytes)


def _check_of(
    directory: IndexRoot,
    directory_part: IndexPart,
    tail: memoryview,
    stored: Sequence[bytes],
    key: str,
    object_bytes: int,
) -> ObjectVerifier:
    parts = iter(stored)
    return ObjectVerifier(
        directory,
        directory_part,
        read_footer(tail, len(directory.row_groups), key),
        [read_pages(next(parts), group, key, object_bytes) for group in directory.row_groups],
        [[read_batches(next(parts), run, key) for run in ledger.runs] for ledger in directory.ledgers],
        object_bytes,
        key,
    )


def receipts(
    encoded: EncodedObject, found: dict[int, VerifiedLedger], key: str, archived_at_ms: int
) -> dict[int, Receipt]:
    """Build a receipt for each ledger of a verified object."""
    directory: IndexRoot = encoded.directory
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


def _add(encoder: ObjectEncoder, batches: Batches) -> None:
    for header, batch in batches:
        encoder.add(batch, header)


def _finish(encoder: ObjectEncoder) -> tuple[EncodedObject, list[bytes]]:
    encoded = encoder.finish()
    return encoded, encoder.take()


async def _send(upload: Upload, chunks: deque[bytes]) -> None:
    """Write ``chunks``, releasing each one."""
    while chunks:
        await upload.write(chunks.popleft())
