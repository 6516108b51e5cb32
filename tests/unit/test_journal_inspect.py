"""Inspection of a stopped journal: plain values, nothing written, damage named."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tallybook.bookie.journal.format import (
    BatchRecord,
    DeleteRecord,
    ExplicitLacRecord,
    FenceRecord,
    JournalRecord,
    LedgerKeyRecord,
)
from tallybook.bookie.journal.inspect import BlockView, RecordView, every_block, inspect_journal, live_blocks
from tallybook.bookie.journal.journal import Journal
from tallybook.bookie.journal.torn_tail import DamageKind, JournalDamage
from tallybook.core.batch import encode_batch
from tallybook.core.errors import DamagedFile, InvalidArgument
from tallybook.core.limits import BLOCK_BYTES, KIB
from tallybook.core.settings import JournalSettings
from tallybook.runtime.rng import SeededRng
from tallybook.runtime.tasks import Tasks
from tallybook.sim.deterministic import SimClock, SimDisk, World

from ..simulated import Parts, on_stage

DIRECTORY = "/journal"
SETTINGS = JournalSettings(segment_bytes=16 * KIB, segment_count=3, max_commit_bytes=8 * KIB)


def unexpected(*what: object) -> None:
    raise AssertionError(what)


@asynccontextmanager
async def empty_disk(_world: World) -> AsyncIterator[Parts]:
    yield {"disk": SimDisk(SeededRng(1))}


on_a_disk = on_stage(empty_disk)


async def write(disk: SimDisk, *commits: list[JournalRecord], clean: bool = False, directory: str = DIRECTORY) -> None:
    """Run a journal that writes a block for each commit."""
    recovered = await Journal.recover(disk, directory, SETTINGS, SeededRng(1))
    journal = await recovered.start(SimClock(), Tasks("test", unexpected), unexpected, on_space=lambda: None)
    for records in commits:
        for record in records:
            journal.append(record, lambda: None)
        assert await journal.drained(1.0)
    if clean:
        await journal.trim(journal.durable_mark())
    await journal.close(clean=clean)


def batch(ledger_id: int, first: int, count: int) -> bytes:
    return encode_batch(ledger_id, first, [b"x"] * count, lac=first - 1, ledger_length=count, written_at_us=0)


@on_a_disk
async def test_each_kind_of_record_is_described(disk: SimDisk) -> None:
    held = batch(7, 3, 2)
    records: list[JournalRecord] = [
        BatchRecord(held),
        BatchRecord(held, recovery=True),
        FenceRecord(8, bytes(32)),
        LedgerKeyRecord(9, bytes(32)),
        ExplicitLacRecord(10, 4),
        DeleteRecord(11),
    ]
    await write(disk, records, [BatchRecord(b"no batch")])
    view = await inspect_journal(disk, DIRECTORY)
    first, second = [block async for block in live_blocks(disk, view)]
    assert first.records == (
        RecordView("batch", 7, len(held), first_entry_id=3, last_entry_id=4, lac=2),
        RecordView("batch", 7, len(held), recovery=True, first_entry_id=3, last_entry_id=4, lac=2),
        RecordView("fence", 8, 0),
        RecordView("ledger key", 9, 0),
        RecordView("explicit lac", 10, 0, lac=4),
        RecordView("delete", 11, 0),
    )
    assert (first.offset, first.size_bytes, first.is_seal, first.problem) == (4096, 4096, False, "")
    assert "shorter than its header" in second.records[0].problem
    assert (view.damage, view.slots, view.end) == ((), (True, True), second.mark)


@on_a_disk
async def test_a_key_is_never_shown(disk: SimDisk) -> None:
    secret = b"0123456789abcdef0123456789abcdef"
    await write(disk, [FenceRecord(8, secret), LedgerKeyRecord(8, secret)])
    view = await inspect_journal(disk, DIRECTORY)
    blocks = [block async for block in live_blocks(disk, view)]
    assert "0123456789" not in repr(blocks) + repr(view)


@on_a_disk
async def test_after_a_clean_stop_nothing_is_live_and_the_blocks_can_still_be_seen(disk: SimDisk) -> None:
    await write(disk, [DeleteRecord(1)], [DeleteRecord(2)], clean=True)
    before = disk.state.digest()
    view = await inspect_journal(disk, DIRECTORY)
    assert view.facts.clean
    assert [block async for block in live_blocks(disk, view)] == []
    seen = [record.ledger_id async for block in every_block(disk, view) for record in block.records]
    assert seen == [1, 2]
    assert not any(segment.live for segment in view.segments)
    assert disk.state.digest() == before, "looking writes nothing"


@on_a_disk
async def test_damage_is_reported_with_file_and_offset(disk: SimDisk) -> None:
    await write(disk, [DeleteRecord(1)], [DeleteRecord(2)], [DeleteRecord(3)])
    path = f"{DIRECTORY}/segment-0001"
    disk.rot.flip_bit(path, 2 * BLOCK_BYTES + 130)
    disk.rot.flip_bit(f"{DIRECTORY}/superblock", 0)
    view = await inspect_journal(disk, DIRECTORY)
    assert view.damage == (JournalDamage(DamageKind.BLOCK, path, 2 * BLOCK_BYTES, 2, 2),)
    assert view.slots == (False, True)
    live = [record.ledger_id async for block in live_blocks(disk, view) for record in block.records]
    assert live == [1, 3]
    blocks: list[BlockView] = [block async for block in every_block(disk, view)]
    assert [block.problem for block in blocks] == ["", "the body fails its checksum", ""]


@on_a_disk
async def test_segments_are_listed_with_what_they_hold(disk: SimDisk) -> None:
    await write(disk, [DeleteRecord(1)])
    disk.rot.overwrite(f"{DIRECTORY}/segment-0002", 0, bytes(100))
    view = await inspect_journal(disk, DIRECTORY)
    numbers = {segment.path[-4:]: segment.header and segment.header.segment for segment in view.segments}
    assert numbers["0001"] == 1
    assert numbers["0002"] is None
    assert all(segment.live for segment in view.segments if segment.path[-4:] in {"0001", "0002"})


@on_a_disk
async def test_a_directory_without_a_journal_and_one_without_facts_are_distinguished(disk: SimDisk) -> None:
    await disk.make_directory(DIRECTORY)
    with pytest.raises(InvalidArgument, match="holds no journal"):
        await inspect_journal(disk, DIRECTORY)
    await write(disk, [DeleteRecord(1)])
    disk.rot.overwrite(f"{DIRECTORY}/superblock", 0, bytes(8192))
    with pytest.raises(DamagedFile, match="superblock"):
        await inspect_journal(disk, DIRECTORY)
