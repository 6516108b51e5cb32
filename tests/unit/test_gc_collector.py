"""Garbage collection of a bookie on a simulated disk: dropped ledgers stay gone, kept ones are unchanged."""

import asyncio
from collections.abc import AsyncIterator
from functools import partial

import pytest

from tallybook.bookie.gc import plan
from tallybook.bookie.ledgers.disposition import LedgerDisposition
from tallybook.bookie.ledgers.state import TOMBSTONE, decode_row, encode_row
from tallybook.bookie.storage.entry_log.format import LedgerShare
from tallybook.core.add_kind import AddKind
from tallybook.core.errors import DiskFull, EntryUnknown, MetadataUnavailable, NoSuchLedger
from tallybook.core.ids import NO_ENTRY, ledger_identity
from tallybook.core.limits import BLOCK_BYTES, KIB, SECTOR_BYTES
from tallybook.sim.deterministic import SimDisk, World
from tallybook.sim.stage.disk_bookie import ROOT, DiskBookie, KnownMetadata, batch_of

from ..simulated import on_stage, world_alone
from ..support.log_lines import line_of
from .bookie_parts import on_a_bookie
from .limbo_parts import reboot_in_limbo

DROPPED, KEPT = 1, 2
NO_SUCH = NoSuchLedger.wire_code


collecting = partial(on_a_bookie, entry_log_bytes=4 * KIB)


async def fill(node: DiskBookie, ledger_id: int, *firsts: int, size: int = 1000) -> None:
    """Batches of a ledger, each in a checkpoint of its own: more than two fill an entry log."""
    for first in firsts:
        assert (await node.add(batch_of(first, ledger_id=ledger_id, payload=bytes(size)))).code == 0
        await node.bookie.flush()


def logs_of(node: DiskBookie) -> list[int]:
    return node.parts.logs.log_ids


async def with_rows(node: DiskBookie) -> list[int]:
    return await node.parts.index.ledgers_with_rows(NO_ENTRY, 100)


def last_journal_block(disk: SimDisk) -> tuple[str, int]:
    """The start of the newest journal block with records: its file and sector."""
    paths = [f"{ROOT}/journal/segment-{slot:04d}" for slot in range(4)]
    blocks = [
        (int.from_bytes(data[at + 32 : at + 40], "little"), path, at // SECTOR_BYTES)
        for path in paths
        for data in [disk.peek(path)]
        for at in range(BLOCK_BYTES, len(data), BLOCK_BYTES)
        if data[at : at + 4] == b"TJBK" and any(data[at + 44 : at + 48])
    ]
    _, path, sector = max(blocks)
    return path, sector


async def is_gone(node: DiskBookie, ledger_id: int = DROPPED) -> None:
    """Every question about the ledger gets the one answer."""
    bookie = node.bookie
    for call in (
        bookie.read_batches(ledger_id, 0, 0, 1),
        bookie.read_batches(ledger_id, 1_000, 1_000, 1),
        bookie.read_entry(ledger_id, 0),
        bookie.recovery_read(ledger_id, 0, b""),
        bookie.read_lac(ledger_id),
        bookie.wait_lac(ledger_id, 0, 10),
        bookie.write_lac(ledger_id, 5, b""),
        bookie.fence(ledger_id, b""),
    ):
        with pytest.raises(NoSuchLedger):
            await call
    for recovery in (False, True):
        assert (
            await node.add(batch_of(0, ledger_id=ledger_id), kind=AddKind.RECOVERY if recovery else AddKind.ORDINARY)
        ).code == NO_SUCH


@collecting()
async def test_e07_a_deleted_ledger_is_dropped_in_the_second_pass_and_kept_where_its_id_was_never_given_out(
    node: DiskBookie,
) -> None:
    foreign = node.metadata.id_counter
    for ledger_id in (DROPPED, foreign):
        await fill(node, ledger_id, 0)
        node.metadata.dispositions[ledger_id] = LedgerDisposition.DELETED
    assert node.bookie.stats()["ledgers_deleted"] == 0
    await node.bookie.collect()
    assert await with_rows(node) == [DROPPED, foreign]
    assert node.bookie.stats()["ledgers_deleted"] == 1
    assert (await node.bookie.read_batches(DROPPED, 0, 0, 1)).batches
    for _ in range(3):
        await node.bookie.collect()
        assert await with_rows(node) == [foreign]
        assert node.bookie.stats()["ledgers_deleted"] == 0
    await is_gone(node)
    assert (await node.bookie.read_batches(foreign, 0, 0, 1)).batches


@collecting()
async def test_deleted_ledgers_wait_for_an_operator_only_if_they_are_more_than_the_set_share(
    node: DiskBookie, *, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(plan, "FEW_LEDGERS", 1)
    for ledger_id in range(1, 9):
        await fill(node, ledger_id, 0)

    async def delete(*ledger_ids: int) -> list[str]:
        node.metadata.dispositions.update(dict.fromkeys(ledger_ids, LedgerDisposition.DELETED))
        caplog.clear()
        for _ in range(2):
            await node.bookie.collect()
        return [line_of(record) for record in caplog.records if "waits for an operator" in record.getMessage()]

    assert await delete(1, 2, 3, 4) == []
    assert await with_rows(node) == [5, 6, 7, 8]
    [line] = await delete(5, 6, 7)
    assert "ledger_count=3" in line
    assert node.bookie.stats()["collection_held"] == 1
    assert await with_rows(node) == [5, 6, 7, 8]
    await node.bookie.approve_drop()
    await node.bookie.collect()
    assert await with_rows(node) == [8]


@on_stage(world_alone, deadline_seconds=3600)
async def test_the_counter_is_read_before_the_first_question_and_nothing_is_deleted_without_it(world: World) -> None:
    class Metadata(KnownMetadata):
        away = False
        asked = ""

        async def read_id_counter(self) -> int:
            self.asked += "counter "
            if self.away:
                raise MetadataUnavailable("no answer")
            return self.id_counter

        async def disposition_of(self, ledger_id: int, bookie_id: str = "", identity: bytes = b"") -> LedgerDisposition:
            self.asked += "ledger "
            return await super().disposition_of(ledger_id)

    metadata = Metadata(dispositions={DROPPED: LedgerDisposition.DELETED})
    node = DiskBookie(SimDisk(world.rng), world.clock, metadata)
    await node.boot()
    await fill(node, DROPPED, 0)
    metadata.away = True
    for _ in range(3):
        metadata.asked = ""
        await node.bookie.collect()
        assert metadata.asked == "counter ledger "
    assert await with_rows(node) == [DROPPED]
    metadata.away = False
    await node.bookie.collect()
    assert await with_rows(node) == [DROPPED]
    await node.bookie.collect()
    assert await with_rows(node) == []
    await node.stop()


@collecting()
async def test_a_tombstone_is_all_that_stays_and_asks_the_metadata_nothing(node: DiskBookie) -> None:
    await fill(node, DROPPED, 0)
    await node.bookie.fence(DROPPED, b"")
    node.metadata.dispositions[DROPPED] = LedgerDisposition.RELEASED
    await node.bookie.collect()
    await node.stop()
    await node.boot()
    index = node.parts.index
    state = await index.load_state(DROPPED)
    assert state is not None
    assert len(state) == 6
    assert decode_row(DROPPED, state) == TOMBSTONE
    before = node.metadata.lookups
    await is_gone(node)
    assert node.metadata.lookups == before


@collecting()
async def test_a_ledger_of_which_only_the_damaged_journal_knew_stays_gone_once_it_was_dropped(
    node: DiskBookie, world: World
) -> None:
    """Limbo covers every older ledger; one that was dropped has nothing that could be lost."""

    await fill(node, DROPPED, 0)
    node.metadata.dispositions[DROPPED] = LedgerDisposition.RELEASED
    await node.bookie.collect()
    await fill(node, KEPT, 0)
    await node.add(batch_of(1, ledger_id=KEPT))
    await world.clock.sleep(1)
    await node.kill()
    node.disk.rot.zero_sector(*last_journal_block(node.disk))
    await node.boot()
    with pytest.raises(EntryUnknown):
        await node.bookie.read_batches(KEPT, 7, 7, 1)
    await is_gone(node)


# -- while others are at it -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("full", "full_times", "is_slow", "dropped"),
    [("", 0, True, 0), ("entrylog", 2, False, 1), ("entrylog", 1, True, 0), ("changes.log", 3, False, 0)],
    ids=["slow", "no space for its batches", "space again, and slow", "no space for its rows"],
)
@collecting()
async def test_what_a_checkpoint_is_writing_is_dropped_in_the_next_pass(
    node: DiskBookie, world: World, *, full: str, full_times: int, is_slow: bool, dropped: int
) -> None:
    await fill(node, DROPPED, 0)
    await node.add(batch_of(1, ledger_id=DROPPED))
    node.metadata.dispositions[DROPPED] = LedgerDisposition.RELEASED
    node.disk.fail("write", full, times=full_times, error=DiskFull)
    node.disk.fail("sync", "entrylog", times=int(is_slow), error=None, delay_seconds=5)
    flush = asyncio.ensure_future(node.bookie.flush())
    await world.clock.sleep(1.5)
    await node.bookie.collect()
    with pytest.raises(NoSuchLedger):
        await node.bookie.read_batches(DROPPED, 0, 0, 1)
    assert node.bookie.stats()["ledgers_dropped_total"] == dropped
    await flush
    await is_gone(node)
    assert await with_rows(node) == ([] if dropped else [DROPPED])
    await node.bookie.collect()
    assert await with_rows(node) == []


@collecting()
async def test_a_reader_in_the_middle_of_a_ledger_gets_its_bytes_or_an_error_that_it_is_gone(
    node: DiskBookie, world: World
) -> None:
    await fill(node, DROPPED, *range(6))
    await fill(node, KEPT, *range(6))
    node.metadata.dispositions[DROPPED] = LedgerDisposition.RELEASED
    node.disk.fail("read", "entrylog", times=1 << 30, error=None, delay_seconds=1)
    reads = [asyncio.ensure_future(node.bookie.read_batches(DROPPED, number, 9, 1 << 20)) for number in range(6)]
    await world.clock.sleep(0.5)
    await node.bookie.collect()
    node.disk.faults.clear()
    await node.bookie.collect()
    assert node.bookie.stats()["entry_logs_removed_total"] > 0
    for answer in await asyncio.gather(*reads, return_exceptions=True):
        assert isinstance(answer, NoSuchLedger) or answer.batches


@collecting(collect_interval_ms=1000)
async def test_a_stop_waits_for_the_change_that_is_in_flight_and_stays_a_clean_one(
    node: DiskBookie, world: World
) -> None:
    await fill(node, DROPPED, *range(8))
    await fill(node, KEPT, 0)
    node.metadata.dispositions[DROPPED] = LedgerDisposition.RELEASED
    node.disk.fail("unlink", "entrylog", error=None, delay_seconds=5)
    while "unlink" not in [fault.operation for fault in node.disk.faults if fault.seen]:
        await world.clock.sleep(0.1)
    await node.stop()
    assert node.failures == []
    await node.boot()
    assert node.bookie.stats()["flushed_batches_total"] == 0


# -- entry logs -------------------------------------------------------------------------------


@pytest.mark.parametrize("refused", [False, True])
@pytest.mark.parametrize("dropped", [False, True])
@collecting()
async def test_a_log_holds_nothing_where_its_ledger_is_refused_for_ever_and_has_no_rows(
    node: DiskBookie, *, refused: bool, dropped: bool
) -> None:
    await fill(node, DROPPED, *range(4))
    parts = node.parts
    states = {DROPPED: encode_row(DROPPED, TOMBSTONE)} if refused else {}
    await parts.index.apply((), states, drop_rows=[DROPPED] if dropped else [])
    assert await parts.collector.reclaimer._holds_nothing(logs_of(node)[0]) is (refused and dropped)


@collecting()
async def test_ids_of_logs_grow_although_all_that_was_written_is_dropped(node: DiskBookie) -> None:
    await fill(node, DROPPED, *range(8))
    highest = logs_of(node)[-1]
    node.metadata.dispositions[DROPPED] = LedgerDisposition.RELEASED
    await node.stop()
    await node.boot()
    await node.bookie.collect()
    assert logs_of(node) == [highest]
    await node.stop()
    await node.boot()
    await fill(node, KEPT, 0)
    assert logs_of(node)[-1] == highest + 1


@collecting()
async def test_e01_a_log_with_a_ledger_that_has_no_rows_goes_once_each_batch_was_looked_at(node: DiskBookie) -> None:
    await fill(node, DROPPED, *range(8))
    await fill(node, KEPT, 0)
    _, strange, *_ = logs_of(node)
    original = node.parts.logs.complete_map

    async def complete_map(log_id: int) -> dict[int, object]:
        return {**await original(log_id), **({999: LedgerShare(1, 1)} if log_id == strange else {})}

    node.parts.logs.complete_map = complete_map  # type: ignore[method-assign, assignment]
    node.metadata.dispositions[DROPPED] = LedgerDisposition.RELEASED
    await node.bookie.collect()
    assert strange not in logs_of(node)
    assert node.bookie.stats()["entry_logs_removed_total"] > 0


# -- what goes wrong --------------------------------------------------------------------------


@pytest.mark.parametrize("operation", [("write", "changes.log"), ("sync", "changes.log"), ("unlink", "entrylog")])
@collecting(collect_interval_ms=1000)
async def test_a_change_that_fails_ends_the_node_and_the_next_life_ends_what_was_begun(
    node: DiskBookie, world: World, *, operation: tuple[str, str]
) -> None:
    await fill(node, DROPPED, *range(8))
    await fill(node, KEPT, 0)
    node.metadata.dispositions[DROPPED] = LedgerDisposition.RELEASED
    node.disk.fail(*operation)
    while not node.failures:
        await world.clock.sleep(1)
    assert "DiskFailed" in node.failures[0]
    await node.lose_power()
    node.disk.faults.clear()
    await node.boot()
    assert (await node.bookie.read_batches(KEPT, 0, 0, 1)).batches
    await node.bookie.collect()
    await is_gone(node)
    assert await with_rows(node) == [KEPT]


@collecting()
async def test_metadata_that_hang_hold_up_a_pass_and_no_more(node: DiskBookie, world: World) -> None:
    async def hangs(*_: object) -> LedgerDisposition:
        await asyncio.Event().wait()
        return LedgerDisposition.RELEASED

    for ledger_id in range(1, 10):
        await node.add(batch_of(0, ledger_id=ledger_id))
    await node.bookie.flush()
    node.metadata.disposition_of = hangs  # type: ignore[method-assign]
    await node.stop()
    await node.boot()
    begun = world.clock.monotonic()
    await node.bookie.collect()
    assert world.clock.monotonic() - begun < 60
    assert await with_rows(node) == list(range(1, 10))


@collecting(collect_interval_ms=1000)
async def test_a_count_of_ledgers_in_limbo_that_takes_long_holds_up_no_pass(node: DiskBookie, world: World) -> None:
    begun = []

    async def named(*_: object) -> AsyncIterator[int]:
        begun.append(world.clock.monotonic())
        await world.clock.sleep(100)
        yield 1

    node.named = named
    await reboot_in_limbo(node, below=100)
    await world.clock.sleep(5)
    for _ in range(3):
        before = node.bookie.stats()["collector_rounds_total"]
        node.bookie.request_collection()
        await world.clock.sleep(0.5)
        assert node.bookie.stats()["collector_rounds_total"] > before
    assert len(begun) == 1


@collecting()
async def test_a_ledger_is_asked_about_at_the_pace_of_the_settings(node: DiskBookie, world: World) -> None:
    for ledger_id in range(1, 17):
        node.metadata.identities[ledger_id] = ledger_identity(f"creator of {ledger_id}")
        assert (await node.add(batch_of(0, ledger_id=ledger_id))).code == 0
    await node.bookie.flush()
    await node.stop()
    collection = node.settings.collection.model_copy(update={"lookups_per_second": 4})
    node.settings = node.settings.model_copy(update={"collection": collection})
    await node.boot()
    begun = world.clock.monotonic()
    await node.bookie.collect()
    assert 3.9 < world.clock.monotonic() - begun < 5


@collecting(collect_interval_ms=1000)
async def test_rounds_that_cannot_be_made_are_counted_and_timed(
    node: DiskBookie, world: World, *, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.clock.sleep(1.5)
    told = node.bookie.readings()
    assert told["collector_rounds_total"] == told["collections_seconds"].count == 2
    assert told["collector_failures_total"] == 0

    async def away(*_: object) -> None:
        raise EntryUnknown("the index cannot be asked")

    monkeypatch.setattr(node.parts.index, "survey_ledgers", away)
    await world.clock.sleep(3)
    told = node.bookie.readings()
    assert (told["collector_rounds_total"], told["collector_failures_total"]) == (2, 3)
