"""Looking into the journal of a stopped bookie: the library behind ``journal dump`` and ``journal verify``.

Everything here reads only, and hands out plain values. ``inspect_journal`` says what the
superblock and the files hold and what is damaged; ``live_blocks`` walks through what the next
boot would replay, in order; ``every_block`` walks through whatever well-formed blocks the
files still hold, recycled ones included, file by file.

What is intact and of a later format is told as that, and is no damage. Where it is more than a batch, nothing of a
journal is to be believed, and nothing is handed out of it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

from tallybook.core.batch import verify_batch
from tallybook.core.errors import InvalidArgument, InvalidBatch, NewerFormat
from tallybook.core.limits import BLOCK_BYTES
from tallybook.runtime.disk import Disk

from .chain import Damage, Run
from .format import BLOCK_HEADER_BYTES, BlockHeader, Mark, SegmentHeader, body_is_intact, decode_block_header
from .records import (
    BatchRecord,
    DeleteRecord,
    ExplicitLacRecord,
    FenceRecord,
    LedgerIdentityRecord,
    LedgerKeyRecord,
    MalformedRecord,
    Record,
    decode_records,
)
from .replay import Window, look_at, read_blocks, survey
from .segments import segment_file_names
from .superblock import Superblock
from .superblock_file import read_superblock

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
    """One file of the ring. ``header`` is ``None`` where it has none that is valid."""

    path: str
    size_bytes: int
    header: SegmentHeader | None
    live: bool
    """Replay would read it."""


@dataclass(frozen=True, slots=True)
class RecordView:
    """One record. Of a batch: its entries.

    ``problem`` says why its own checks fail, empty where they pass; ``later_format`` that only a newer Tallybook can
    tell.
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

    ``records`` is empty for a seal, where ``problem`` says that its body is damaged, and where ``later_format`` says
    that a newer Tallybook has written some of them.
    """

    path: str
    offset: int
    mark: Mark
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
    """Which slots of the superblock pass their checks. One that does not is normal after a crash."""
    segments: tuple[SegmentView, ...]
    runs: tuple[Run, ...]
    damage: tuple[Damage, ...]
    end: Mark
    """The last intact block."""


async def inspect_journal(disk: Disk, directory: str) -> JournalView:
    """Read superblock and segments of the journal in ``directory``; change nothing.

    Raises:
        InvalidArgument: there is no journal.
        DamagedFile: neither slot of the superblock passes its checks.
        NewerFormat: some of it is of a later version.
        DiskFailed: a file cannot be opened.
    """
    read = await read_superblock(disk, directory)
    if read is None:
        raise InvalidArgument(f"{directory} holds no journal")
    facts = read.facts
    findings = await survey(disk, directory, facts)
    live = {f"{directory}/{facts.geometry.file_name(segment)}" for segment in facts.expected_segments()}
    files = [await look_at(disk, f"{directory}/{name}") for name in await segment_file_names(disk, directory)]
    segments = [SegmentView(file.path, file.size, file.header, file.path in live) for file in files]
    slots = tuple(slot is not None for slot in read.slots)
    return JournalView(directory, facts, slots, tuple(segments), *findings)


async def live_blocks(disk: Disk, view: JournalView) -> AsyncIterator[BlockView]:
    """What the next boot would replay, in order.

    Raises:
        DamagedFile: a file changed since ``inspect_journal``.
    """
    for run in view.runs:
        async for header, body in read_blocks(disk, view.facts, run):
            yield _describe(run.path, header, body)


async def every_block(disk: Disk, view: JournalView) -> AsyncIterator[BlockView]:
    """Every block with a valid header that any life of this journal left in the files, in the order of the files.

    Raises:
        DiskFailed: a file cannot be opened or read.
    """
    for segment in view.segments:
        file = await disk.open(segment.path, writable=False)
        try:
            window = Window(file)
            offset = BLOCK_BYTES
            while offset < segment.size_bytes:
                header = decode_block_header(await window.view(offset, BLOCK_BYTES))
                if header is None or header.instance != view.facts.instance or header.offset != offset:
                    offset += BLOCK_BYTES
                    continue
                whole = await window.view(offset, header.total_bytes)
                yield _describe(segment.path, header, whole[BLOCK_HEADER_BYTES:][: header.body_bytes])
                # Not by its length: within an old block, a newer one may begin.
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


def _describe_record(record: Record) -> RecordView:
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
