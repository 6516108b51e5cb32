"""Repair and inspection of a bookie on a simulated disk: accepted copies, inventory, and entry locations."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import pytest

from tallybook.bookie.ledgers.confirmed_prefix import ConfirmedPrefix
from tallybook.bookie.storage.location import IndexRow
from tallybook.core.add_kind import AddKind
from tallybook.core.answers import DamagedBatch, EntryRange, HeldAnswer, HeldLedger, HeldLedgers
from tallybook.core.batch import decode_header
from tallybook.core.errors import (
    BookieUnavailable,
    Conflict,
    EntryAbsent,
    EntryCorrupt,
    EntryUnknown,
    LedgerFenced,
    MetadataUnavailable,
    NoSuchLedger,
    OutOfFiles,
    Unauthorized,
)
from tallybook.core.ids import MAX_ID
from tallybook.core.limits import SECTOR_BYTES
from tallybook.sim.deterministic import World
from tallybook.sim.stage.disk_bookie import ROOT, DiskBookie, KnownMetadata, batch_of

from ..simulated import Parts, on_stage
from .bookie_parts import booted
from .limbo_parts import reboot_in_limbo

OPEN, CLOSED, GROWN, GONE = 1, 2, 3, 4
"""Ledgers: open and at its beginning, closed at entry 9, in its second fragment from entry 10 on, not there."""
ALL = (-1, -1)


def ledgers() -> KnownMetadata:
    return KnownMetadata(
        verifiers=dict.fromkeys((OPEN, CLOSED, GROWN), b""),
        open_to_all=False,
        confirmed_prefixes={CLOSED: ConfirmedPrefix(9, closed=True), GROWN: ConfirmedPrefix(9, closed=False)},
    )


on_a_bookie = partial(on_stage, booted, deadline_seconds=3600, metadata=ledgers)


def batch(first: int, count: int = 1, *, ledger_id: int = CLOSED, payload: bytes = b"entry") -> bytes:
    return batch_of(first, count, ledger_id=ledger_id, payload=payload)


async def repair(node: DiskBookie, data: bytes) -> int:
    return (await node.add(data, kind=AddKind.REPAIR)).code


async def read(node: DiskBookie, entry_id: int, ledger_id: int = CLOSED) -> bytes:
    return bytes((await node.bookie.read_batches(ledger_id, entry_id, entry_id, 1)).batches[0])


async def row_of(node: DiskBookie, entry_id: int, ledger_id: int = CLOSED) -> IndexRow:
    row = await node.parts.index.find(ledger_id, entry_id)
    assert row is not None
    return row


def path_of(row: IndexRow) -> str:
    return f"{ROOT}/ledgers/entrylog-{row.location.log_id:016d}.log"


def rot(node: DiskBookie, row: IndexRow) -> None:
    node.disk.rot.zero_sector(path_of(row), (row.location.offset + row.location.size // 2) // SECTOR_BYTES)


# -- the metadata instead of a key ------------------------------------------------------------


@on_a_bookie()
async def test_the_key_that_opens_a_ledger_opens_no_way_for_a_repair_of_its_end(node, world):
    assert (await node.add(batch(10, ledger_id=GROWN))).code == 0
    assert await repair(node, batch(11, ledger_id=GROWN)) == Unauthorized.wire_code
    assert await repair(node, batch(10, ledger_id=GROWN)) == Unauthorized.wire_code, "held already, even so"


@on_a_bookie()
async def test_while_the_metadata_are_away_nothing_of_a_repair_is_taken(node, world):
    node.metadata.away = True
    assert await repair(node, batch(0, 5)) == MetadataUnavailable.wire_code
    with pytest.raises(EntryAbsent):
        await read(node, 0)
    assert node.bookie.stats()["recovery_inflight_bytes"] == 0
    node.metadata.away = False
    assert await repair(node, batch(0, 5)) == 0
    node.metadata.away = True
    assert await repair(node, batch(5, 5)) == 0, "what was settled stays so"


@pytest.mark.parametrize("restarts", [False, True])
@on_a_bookie()
async def test_a_repair_does_not_open_a_ledger_with_a_key_to_those_without(node, world, *, restarts):
    """The first batch of a ledger records its verifier: that of the metadata, although no key came with it."""
    node.metadata.verifiers[CLOSED] = b"v" * 32
    assert await repair(node, batch(0, 5)) == 0
    if restarts:
        await node.lose_power()
        await node.boot()
    assert (await node.add(batch(5), b"")).code == Unauthorized.wire_code


@on_a_bookie()
async def test_a_repair_is_taken_by_a_read_only_bookie_in_the_lane_of_recoveries(node, world):
    node.bookie.set_read_only(True)
    call = node.add(batch(0, 5), kind=AddKind.REPAIR)
    assert node.bookie.stats()["recovery_inflight_bytes"] > 0
    assert node.bookie.stats()["inflight_bytes"] == 0
    assert (await call).code == 0
    assert node.bookie.stats()["recovery_inflight_bytes"] == 0


# -- what a repair must not undo --------------------------------------------------------------


@pytest.mark.parametrize("restarts", [False, True])
@on_a_bookie()
async def test_f12_a_repair_leaves_a_fence_where_it_is(node, world, *, restarts):
    await node.bookie.fence(GROWN, b"")
    assert await repair(node, batch(0, 10, ledger_id=GROWN)) == 0
    if restarts:
        await node.bookie.flush()
        await node.lose_power()
        await node.boot()
    assert (await node.bookie.read_lac(GROWN)).fenced
    assert (await node.add(batch(10, ledger_id=GROWN))).code == LedgerFenced.wire_code


@pytest.mark.parametrize("state", ["deleted", "dropped", "dropped, then started again"])
@on_a_bookie()
async def test_f12_a_repair_brings_no_deleted_ledger_back_with_any_metadata(node, world, *, state):
    assert await repair(node, batch(0, 5)) == 0
    await node.bookie.flush()
    await node.bookie.delete_ledger(CLOSED)
    if state != "deleted":
        await node.bookie.collect()
    if state.endswith("again"):
        await node.stop()
        await node.boot()
    for first in (0, 5):
        assert await repair(node, batch(first, 5)) == NoSuchLedger.wire_code
    for call in (node.bookie.held(CLOSED, 0, 9), node.bookie.end_limbo(CLOSED), read(node, 0)):
        with pytest.raises(NoSuchLedger):
            await call
    assert await node.bookie.held_ledgers(-1, 10) == HeldLedgers((), complete=True)
    assert (await node.bookie.trace(CLOSED, 0)).verdict == "deleted"
    await node.lose_power()
    await node.boot()
    with pytest.raises(NoSuchLedger):
        await read(node, 0)


@on_a_bookie()
async def test_f12_a_deletion_while_the_metadata_are_asked_keeps_a_repair_out(node, world):
    ask = node.metadata.confirmed_prefix_of

    async def deletes_first(ledger_id: int) -> ConfirmedPrefix:
        found = await ask(ledger_id)
        await node.bookie.delete_ledger(ledger_id)
        return found

    node.metadata.confirmed_prefix_of = deletes_first  # type: ignore[method-assign]
    await node.stop()
    await node.boot()
    assert await repair(node, batch(0, 5)) == NoSuchLedger.wire_code
    assert node.bookie.stats()["adds_batches_total"] == 0


# -- what is held already ---------------------------------------------------------------------


@pytest.mark.parametrize("flushed", [False, True])
@on_a_bookie()
async def test_other_bytes_than_those_held_are_a_conflict_and_the_same_are_done(node, world, *, flushed):
    assert await repair(node, batch(2, 5)) == 0
    if flushed:
        await node.bookie.flush()
    for first, count in ((2, 5), (2, 4), (2, 6), (3, 4), (0, 9), (6, 1)):
        other = batch(first, count, payload=b"other")
        assert await repair(node, other) == Conflict.wire_code
    assert await repair(node, batch(2, 5)) == 0
    assert node.bookie.stats()["adds_batches_total"] == 1
    assert await read(node, 4) == batch(2, 5)


@asynccontextmanager
async def damaged_copies(world: World) -> AsyncIterator[Parts]:
    """Three batches in entry logs, each in one of its own; the second one is rotten."""
    async with booted(world, metadata=ledgers) as parts:
        node = parts["node"]
        for first in (0, 3, 6):
            assert await repair(node, batch(first, 3, payload=b"x" * 700)) == 0
            await node.bookie.flush()
        rot(node, await row_of(node, 3))
        yield parts


on_damaged_copies = on_stage(damaged_copies)


@on_damaged_copies
async def test_a_repair_replaces_a_damaged_copy_and_the_damage_is_known_no_more_once_that_is_written(node, world):
    with pytest.raises(EntryCorrupt):
        await read(node, 4)
    assert await node.bookie.damaged(ALL, 10) == (DamagedBatch(CLOSED, 3, 5),)
    assert await repair(node, batch(3, 3, payload=b"x" * 700)) == 0
    assert (await node.bookie.status()).damaged_batches == 1, "its row is not written yet"
    await node.bookie.flush()
    assert (await node.bookie.status()).damaged_batches == 0
    assert await node.bookie.damaged(ALL, 10) == ()
    await node.stop()
    await node.boot()
    assert await read(node, 4) == batch(3, 3, payload=b"x" * 700)


@on_damaged_copies
async def test_a_good_copy_in_the_read_cache_keeps_no_repair_from_mending_the_one_on_the_disk(node, world):
    good = batch(0, 3, payload=b"x" * 700)
    assert await read(node, 0) == good
    row = await row_of(node, 0)
    rot(node, row)
    assert await read(node, 0) == good, "from the read cache"
    assert await repair(node, good) == 0
    await node.bookie.flush()
    assert (await row_of(node, 0)).location != row.location
    await node.stop()
    await node.boot()
    assert await read(node, 0) == good


@on_damaged_copies
async def test_a_damaged_copy_of_other_entries_is_not_replaced(node, world):
    for first, count in ((3, 2), (4, 2), (2, 4), (3, 4)):
        assert await repair(node, batch(first, count)) == Conflict.wire_code
    assert node.bookie.stats()["adds_batches_total"] == 3


@on_damaged_copies
async def test_a_copy_whose_log_is_lost_is_replaced(node, world):
    good = batch(0, 3, payload=b"x" * 700)
    row = await row_of(node, 0)
    await node.stop()
    await node.disk.unlink(path_of(row))
    await node.boot()
    with pytest.raises(EntryUnknown):
        await read(node, 0)
    assert (await node.bookie.trace(CLOSED, 0)).verdict == "unknown"
    assert await repair(node, good) == 0
    await node.bookie.flush()
    assert await read(node, 0) == good


@on_damaged_copies
async def test_a_batch_that_moves_while_it_is_looked_for_on_the_disk_is_not_taken_for_damaged(
    node, world, *, monkeypatch
):
    async def no_row(*_ids: int) -> None:
        return None

    stored, old = node.parts.tracer._stored, await row_of(node, 3)
    assert await repair(node, batch(3, 3, payload=b"x" * 700)) == 0
    await node.bookie.flush()
    copy = await stored.on_disk(old)
    assert copy is not None
    assert copy.row == await row_of(node, 3) != old
    assert copy.batch == batch(3, 3, payload=b"x" * 700)
    assert (await node.bookie.status()).damaged_batches == 0
    monkeypatch.setattr(stored._index, "find", no_row)
    assert await stored.on_disk(old) is None, "it was dropped meanwhile"


@on_damaged_copies
async def test_a_copy_that_cannot_be_read_for_want_of_files_is_not_replaced(node, world, *, monkeypatch):
    async def no_files(*_rows: object) -> list[bytes]:
        raise EntryUnknown("not now") from OutOfFiles("too many files")

    with monkeypatch.context() as patch:
        patch.setattr(node.parts.logs, "read_many", no_files)
        assert await repair(node, batch(0, 3, payload=b"x" * 700)) == EntryUnknown.wire_code
    assert await repair(node, batch(0, 3, payload=b"x" * 700)) == 0
    assert node.bookie.stats()["adds_batches_total"] == 3


@on_damaged_copies
async def test_a_page_of_damage_is_empty_only_where_there_is_no_more(node, world):
    """Rows at its front were repaired meanwhile; a caller that reads page by page must not take that for the end."""
    damage = node.parts.damage
    for first in (0, 3, 6):
        damage.add(DamagedBatch(CLOSED, first, first + 2))
    assert await node.bookie.damaged(ALL, 1) == (DamagedBatch(CLOSED, 3, 5),)
    assert await node.bookie.damaged((CLOSED, 3), 1) == ()


# -- limbo ------------------------------------------------------------------------------------


@asynccontextmanager
async def in_limbo(world: World) -> AsyncIterator[Parts]:
    """A bookie that took the place of another one: all its ledgers may miss something."""
    async with booted(world, metadata=ledgers, clean=False) as parts:
        await reboot_in_limbo(parts["node"], below=100)
        yield parts


on_limbo = on_stage(in_limbo)


@on_limbo
async def test_a_ledger_in_limbo_accepts_repairs_and_leaves_limbo_when_all_copies_are_restored(node, world):
    assert await repair(node, batch(0, 5)) == 0
    assert await node.bookie.held(CLOSED, 0, 9) == HeldAnswer((EntryRange(0, 4),), 9, limbo=True)
    assert await repair(node, batch(5, 5)) == 0
    status = await node.bookie.status()
    assert (status.limbo_events, status.limbo_below) == (1, 100)
    await node.bookie.end_limbo(CLOSED)
    assert await node.bookie.held(CLOSED, 0, 20) == HeldAnswer((EntryRange(0, 9),), 20, limbo=False)
    assert (await node.bookie.held_ledgers(-1, 1)).ledgers == (HeldLedger(CLOSED, fenced=True, limbo=False),)


@on_limbo
async def test_limbo_does_not_end_on_request_while_the_ledger_is_open(node, world):
    for ledger_id, error in ((OPEN, Unauthorized), (GROWN, Unauthorized), (GONE, NoSuchLedger)):
        with pytest.raises(error):
            await node.bookie.end_limbo(ledger_id)
    node.metadata.away = True
    with pytest.raises(MetadataUnavailable):
        await node.bookie.end_limbo(CLOSED)
    for ledger_id in (OPEN, GROWN, CLOSED):
        assert (await node.bookie.held(ledger_id, 0, 9)).limbo


@on_limbo
async def test_the_end_of_limbo_is_answered_when_it_is_durable_also_to_a_second_request(node, world):
    parts = node.parts
    first = asyncio.ensure_future(node.bookie.end_limbo(CLOSED))
    async with parts.table.using(CLOSED) as ledger:
        while ledger.repair_events is None:  # noqa: ASYNC110 (no notification)
            await asyncio.sleep(0)
    await node.bookie.end_limbo(CLOSED)
    ledger = parts.table.get(CLOSED)
    assert ledger is not None
    assert not ledger.dirty
    row = await parts.index.load_state(CLOSED)
    assert row is not None
    await first


# -- tracing ----------------------------------------------------------------------------------


@on_a_bookie()
async def test_a_copy_is_traced_to_every_place_where_it_is(node, world):
    good = batch(0, 5)
    await repair(node, good)
    trace = await node.bookie.trace(CLOSED, 2)
    assert [each.where for each in trace.places] == ["write cache", "journal"]
    await node.bookie.flush()
    row = await row_of(node, 2)
    where = f"log {row.location.log_id} offset {row.location.offset}"
    trace = await node.bookie.trace(CLOSED, 2)
    assert [each[:2] for each in trace.places] == [("entry log", where)]
    assert trace[:6] == ("intact", "", 0, 4, decode_header(good).crc, len(good))
    await read(node, 2)
    hits = node.bookie.stats()["read_cache_hits_total"]
    trace = await node.bookie.trace(CLOSED, 2)
    assert [each.where for each in trace.places] == ["read cache", "entry log"]
    assert {each.size for each in trace.places} == {len(good)}
    assert node.bookie.stats()["read_cache_hits_total"] == hits, "a look is no use"


@on_damaged_copies
async def test_a_trace_reads_from_disk_despite_caches_and_puts_damage_on_the_list(node, world):
    await read(node, 0)
    row = await row_of(node, 0)
    rot(node, row)
    trace = await node.bookie.trace(CLOSED, 1)
    assert [each.where for each in trace.places] == ["read cache", "entry log"]
    assert trace[0] == "damaged"
    assert path_of(row) in trace.why
    assert trace[2:6] == (0, 2, 0, row.location.size)
    assert (await node.bookie.status()).damaged_batches == 1
    await repair(node, batch(0, 3, payload=b"x" * 700))
    trace = await node.bookie.trace(CLOSED, 1)
    assert trace.verdict == "intact", "what the next checkpoint writes"
    assert [each.where for each in trace.places] == ["write cache", "journal", "read cache", "entry log"]


@on_limbo
async def test_what_may_have_been_lost_is_traced_as_unknown_and_what_was_not_as_absent(node, world):
    trace = await node.bookie.trace(CLOSED, 1)
    assert (trace.verdict, trace.limbo, trace.places) == ("unknown", True, ())
    await node.bookie.end_limbo(CLOSED)
    trace = await node.bookie.trace(CLOSED, MAX_ID)
    assert (trace.verdict, trace.fenced, trace.first_entry_id, trace.last_entry_id) == ("absent", True, -1, -1)


@on_a_bookie(clean=False)
async def test_a_bookie_that_is_not_enrolled_yet_says_that_every_ledger_may_be_in_limbo(node, world):
    await reboot_in_limbo(node, below=100, registered=False)
    assert (await node.bookie.status()).limbo_below == MAX_ID
    with pytest.raises(BookieUnavailable):
        await node.bookie.end_limbo(CLOSED)
