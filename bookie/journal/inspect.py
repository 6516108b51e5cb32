"""Reads the journal of a stopped bookie, for the commands ``journal dump`` and ``journal verify``.

Everything here only reads, and returns plain values. ``inspect_journal`` reports the contents of superblock and files,
and damage; ``live_blocks`` iterates over what the next boot would replay, in order; ``every_block`` iterates over all
well-formed blocks in the files, recycled ones included, file by file.

Intact data of a later format is reported as such, not as damage. If it is more than a batch, the journal cannot be
interpreted, and nothing of it is returned.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

from tallybook.core.batch import verify_batch
from tallybook.core.errors import InvalidArgument, InvalidBatch, NewerFormat
from tallybook.core.limits import BLOCK_BYTES
from tallybook.runtime.disk.port import Disk

from .format import (
    BLOCK_HEADER_BYTES,
    BatchRecord,
    BlockHeader,
    DeleteRecord,
    ExplicitLacRecord,
    FenceRecord,
    JournalMark,
    JournalRecord,
    LedgerIdentityRecord,
    LedgerKeyRecord,
    MalformedRecord,
    SegmentHeader,
    body_is_intact,
    decode_block_header,
    decode_records,
)
from .replay import FileWindow, read_blocks, read_segment_file, survey
from .segments import segment_file_names
from .superblock import Superblock
from .superblock_file import read_superblock
from .torn_tail import BlockRange, JournalDamage

_KINDS = {
    BatchRecord: "batch",
    FenceRecord: "fence",
    LedgerKeyRecord: "ledger key",
    LedgerIdentityRecord: "ledger identity",
    ExplicitLacRecord: "explicit lac",
    DeleteRecord: "delete",
}


@dataclass(frozen=True, slots=True)
class SegmentView:
    """One file of the ring. ``header`` is ``None`` if there is no valid one."""

    path: str
    size_bytes: int
    header: SegmentHeader | None
    live: bool
    """Whether replay would read it."""


@dataclass(frozen=True, slots=True)
class RecordView:
    """One record; entry ids are set for a batch.

    ``problem`` says which of its own checks fails, empty if none; ``later_format`` that only a newer Tallybook can
    read it.
    """

    kind: str
    ledger_id: int
    size_bytes: int
    recovery: bool = False
    first_entry_id: int | None = None
    last_entry_id: int | None = None
    lac: int | None = None
    problem: str = ""
    later_format: str = ""


@dataclass(frozen=True, slots=True)
class BlockView:
    """One block.

    ``records`` is empty for a seal, for a damaged body (see ``problem``), and if a newer Tallybook has written some of
    them (see ``later_format``).
    """

    path: str
    offset: int
    mark: JournalMark
    size_bytes: int
    is_seal: bool
    records: tuple[RecordView, ...]
    problem: str = ""
    later_format: str = ""


@dataclass(frozen=True, slots=True)
class JournalView:
    """A stopped journal."""

    directory: str
    facts: Superblock
    slots: tuple[bool, ...]
    """Which slots of the superblock pass their checks. A bad one is normal after a crash."""
    segments: tuple[SegmentView, ...]
    ranges: tuple[BlockRange, ...]
    damage: tuple[JournalDamage, ...]
    end: JournalMark
    """The last intact block."""


async def inspect_journal(disk: Disk, directory: str) -> JournalView:
    """Read superblock and segments of the journal in ``directory``; writes nothing.

    Raises:
        InvalidArgument: there is no journal.
        DamagedFile: neither slot of the superblock passes its checks.
        NewerFormat: part of it has a later version.
        DiskFailed: a file cannot be opened.
    """
    read = await read_superblock(disk, directory)
    if read is None:
        raise InvalidArgument(f"{directory} holds no journal")
    facts = read.facts
    findings = await survey(disk, directory, facts)
    live = {f"{directory}/{facts.geometry.file_name(segment)}" for segment in facts.expected_segments()}
    files = [await read_segment_file(disk, f"{directory}/{name}") for name in await segment_file_names(disk, directory)]
    segments = [SegmentView(file.path, file.size, file.header, file.path in live) for file in files]
    slots = tuple(slot is not None for slot in read.slots)
    return JournalView(directory, facts, slots, tuple(segments), *findings)


async def live_blocks(disk: Disk, view: JournalView) -> AsyncIterator[BlockView]:
    """The blocks that the next boot would replay, in order.

    Raises:
        DamagedFile: a file changed since ``inspect_journal``.
    """
    for run in view.ranges:
        async for header, body in read_blocks(disk, view.facts, run):
            yield _describe(run.path, header, body)


async def every_block(disk: Disk, view: JournalView) -> AsyncIterator[BlockView]:
    """Every block with a valid header that any incarnation of this journal left in its files, in their order.

    Raises:
        DiskFailed: a file cannot be opened or read.
    """
    for segment in view.segments:
        file = await disk.open(segment.path, writable=False)
        try:
            window = FileWindow(file)
            offset = BLOCK_BYTES
            while offset < segment.size_bytes:
                header = decode_block_header(await window.view(offset, BLOCK_BYTES))
                if header is None or header.instance != view.facts.instance or header.offset != offset:
                    offset += BLOCK_BYTES
                    continue
                whole = await window.view(offset, header.total_bytes)
                yield _describe(segment.path, header, whole[BLOCK_HEADER_BYTES:][: header.body_bytes])
                # Advance block by block, not by this block's length: a newer block may begin inside an old one.
                offset += BLOCK_BYTES
        finally:
            await file.close()


def _describe(path: str, header: BlockHeader, body: memoryview) -> BlockView:
    records: tuple[RecordView, ...] = ()
    problem = later = ""
    if not body_is_intact(header, body):
        problem = "the body fails its checksum"
    else:
        try:
            records = tuple(map(_describe_record, decode_records(body, header.record_count)))
        except MalformedRecord as error:
            problem = str(error)
        except NewerFormat as error:
            later = error.message
    return BlockView(path, header.offset, header.mark, header.total_bytes, header.is_seal, records, problem, later)


def _describe_record(record: JournalRecord) -> RecordView:
    kind = _KINDS[type(record)]
    if isinstance(record, BatchRecord):
        return _describe_batch(kind, record)
    lac = record.lac if isinstance(record, ExplicitLacRecord) else None
    return RecordView(kind, record.ledger_id, 0, lac=lac)


def _describe_batch(kind: str, record: BatchRecord) -> RecordView:
    size = len(record.batch)
    try:
        header = verify_batch(record.batch)
    except InvalidBatch as error:
        return RecordView(kind, -1, size, record.recovery, problem=error.message)
    except NewerFormat as error:
        return RecordView(kind, -1, size, record.recovery, later_format=error.message)
    return RecordView(
        kind,
        header.ledger_id,
        size,
        record.recovery,
        first_entry_id=header.first_entry_id,
        last_entry_id=header.last_entry_id,
        lac=header.lac,
    )
