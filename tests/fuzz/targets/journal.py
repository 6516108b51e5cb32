"""Fuzz target: the files of a journal, as a bookie finds them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tallybook.bookie.journal import format as fmt
from tallybook.bookie.journal.format import (
    BatchRecord,
    DeleteRecord,
    ExplicitLacRecord,
    FenceRecord,
    LedgerIdentityRecord,
    LedgerKeyRecord,
    MalformedRecord,
    decode_records,
    encode_record,
)
from tallybook.bookie.journal.inspect import JournalView, SegmentView, every_block
from tallybook.bookie.journal.replay import read_records, survey
from tallybook.bookie.journal.superblock import Superblock, decode_slot, encode_slot, newest, next_versions
from tallybook.core.batch import encode_batch
from tallybook.core.limits import BLOCK_BYTES

from ..harness import Finding, Target, attempt, finished, same
from ..mutations import with_crc
from ..one_file_disk import OneFile

TARGET = Target("journal", words=(b"TJSB\x01", b"TJSG\x01", b"TJBK\x01", b"\xff" * 8, b"\x00" * 8))

INSTANCE = bytes(range(16))
BATCH = encode_batch(7, 0, [b"hello"], lac=-1, ledger_length=5, written_at_us=1)
GEOMETRY = fmt.RingGeometry(4 * BLOCK_BYTES, 3)
FACTS = Superblock(
    4, INSTANCE, 2, False, fmt.JournalMark(1, 0), fmt.JournalMark(1, 1), 1, GEOMETRY, True, fmt.JournalMark(0, 0), 0
)  # fmt: skip
RECORDS = (
    BatchRecord(BATCH), BatchRecord(BATCH, recovery=True), FenceRecord(7, bytes(32)), LedgerKeyRecord(7, bytes(32)),
    LedgerIdentityRecord(7, bytes(32), bytes(16)),
    ExplicitLacRecord(7, -1), DeleteRecord(7),
)  # fmt: skip


def _body(*records: Any) -> bytes:
    return b"".join(bytes(part) for record in records for part in encode_record(record))


def a_block(mark: fmt.JournalMark, offset: int, *records: Any) -> bytes:
    """A block as stored on the disk."""
    body = _body(*records)
    block = bytearray(fmt.aligned(fmt.BLOCK_HEADER_BYTES + len(body)))
    block[fmt.BLOCK_HEADER_BYTES : fmt.BLOCK_HEADER_BYTES + len(body)] = body
    fmt.put_block_header(
        memoryview(block),
        instance=INSTANCE,
        mark=mark,
        offset=offset,
        record_count=len(records),
        body_bytes=len(body),
        body_crc=fmt.add_to_crc(0, memoryview(body)),
        previous_crc=0,
    )
    return bytes(block)


def some_slots() -> Iterator[bytes]:
    """Slots after a clean stop, and after a crash."""
    yield encode_slot(FACTS)[:116]
    yield encode_slot(next_versions(FACTS)[0])[:116]
    yield encode_slot(
        Superblock(
            9,
            INSTANCE,
            3,
            True,
            fmt.JournalMark(7, 70),
            fmt.JournalMark(8, 71),
            9,
            GEOMETRY,
            False,
            fmt.JournalMark(7, 70),
            2,
        )
    )[:116]


@TARGET.decoder("bookie/journal/superblock.py:decode_slot", "bookie/journal/superblock.py:newest", seeds=some_slots)
def superblock_slot(data: bytes) -> None:
    """One slot of a superblock, and decisions based on it."""
    for given in (data, with_crc(data, 112, (0, 112))):
        facts = decode_slot(given)
        if facts is not None:
            same(encode_slot(facts)[:116], bytes(given[:116]), "a slot")
            newest([facts, None])
            facts.next_begin()
            facts.geometry.file_name(facts.begin.segment)
            if len(facts.expected_segments()) > facts.geometry.segment_count + 1:
                raise Finding(f"a replay would look for {facts.expected_segments()} in a ring of {facts.geometry}")


def some_segment_headers() -> Iterator[bytes]:
    """A segment header; bytes after its checksum are not read."""
    yield fmt.encode_segment_header(fmt.SegmentHeader(INSTANCE, 1, 2, GEOMETRY.segment_bytes))[:56]


@TARGET.decoder("bookie/journal/format.py:decode_segment_header", seeds=some_segment_headers)
def segment_header(data: bytes) -> None:
    """The header of a segment."""
    for given in (data, with_crc(data, 52, (0, 52))):
        found = fmt.decode_segment_header(given)
        if found is not None:
            same(fmt.decode_segment_header(fmt.encode_segment_header(found)), found, "a segment's header")


def some_blocks() -> Iterator[bytes]:
    """A block with every kind of record, and a seal."""
    yield a_block(fmt.JournalMark(1, 1), BLOCK_BYTES, *RECORDS)
    for record in RECORDS:
        yield a_block(fmt.JournalMark(1, 1), BLOCK_BYTES, record)
    yield a_block(fmt.JournalMark(1, 2), BLOCK_BYTES)[: fmt.BLOCK_HEADER_BYTES]


@TARGET.decoder(
    "bookie/journal/format.py:decode_block_header",
    "bookie/journal/format.py:newer_block",
    "bookie/journal/format.py:record_spans",
    "bookie/journal/format.py:decode_records",
    "bookie/journal/format.py:_decode_record",
    seeds=some_blocks,
)
def block(data: bytes) -> None:
    """A block: its header, and the records in it, even if the checksum of the body is wrong."""
    for given in (data, with_crc(data, 124, (0, 124))):
        header = fmt.decode_block_header(given)
        fmt.newer_block(given, bytes(given[8:24]), 0, BLOCK_BYTES)
        if header is None:
            continue
        body = given[fmt.BLOCK_HEADER_BYTES :][: header.body_bytes]
        fmt.body_is_intact(header, body)
        found = attempt(
            MalformedRecord, lambda body, count: list(decode_records(body, count)), body, header.record_count
        )
        if isinstance(found, list):
            same(_body(*found), bytes(body), "the records of a block")


def some_journals() -> Iterator[bytes]:
    """The blocks of a ring whose second segment is in use."""
    yield b""
    yield a_block(fmt.JournalMark(1, 1), BLOCK_BYTES, *RECORDS)
    one, two = (
        a_block(fmt.JournalMark(1, 1), BLOCK_BYTES, *RECORDS),
        a_block(fmt.JournalMark(1, 2), 2 * BLOCK_BYTES, *RECORDS),
    )
    yield one + two
    yield bytes(BLOCK_BYTES) + two
    yield one + bytes(BLOCK_BYTES) + a_block(fmt.JournalMark(1, 3), 3 * BLOCK_BYTES)


@TARGET.decoder(
    "bookie/journal/replay.py:survey",
    "bookie/journal/replay.py:read_segment_file",
    "bookie/journal/replay.py:_survey_segment",
    "bookie/journal/replay.py:_walk",
    "bookie/journal/replay.py:_header_at",
    "bookie/journal/replay.py:_is_intact",
    "bookie/journal/replay.py:read_records",
    "bookie/journal/replay.py:read_blocks",
    "bookie/journal/inspect.py:every_block",
    seeds=some_journals,
)
def ring(data: bytes) -> None:
    """A whole journal, as read by a boot and by the inspection commands. Both give the same result twice."""
    blocks = b"".join(
        with_crc(data[at : at + BLOCK_BYTES], 124, (0, 124))
        if data[at : at + 4] == fmt.BLOCK_MAGIC
        else data[at : at + BLOCK_BYTES]
        for at in range(0, min(len(data), GEOMETRY.segment_bytes), BLOCK_BYTES)
    )
    header = fmt.encode_segment_header(fmt.SegmentHeader(INSTANCE, 1, 2, GEOMETRY.segment_bytes))
    disk = OneFile("journal/" + GEOMETRY.file_name(1), header + blocks)

    async def read() -> None:
        findings = await survey(disk, "journal", FACTS)
        first, again = [[record async for record in read_records(disk, FACTS, findings.ranges)] for _ in range(2)]
        same(first, again, "what is replayed")
        view = JournalView(
            "journal", FACTS, (True, True), (SegmentView(disk.path, len(header + blocks), None, True),), *findings
        )
        seen = [view async for view in every_block(disk, view)]
        replayed = sum(run.last_block - run.first_block + 1 for run in findings.ranges)
        if replayed > len(seen):
            raise Finding(f"{replayed} blocks are replayed, and {len(seen)} seen")

    finished(read())
