"""The collector of a bookie on a simulated disk: what it drops is gone for ever, what it keeps is as it was."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tallybook.bookie import collector
from tallybook.bookie.collector import Collector
from tallybook.bookie.garbage import Fate
from tallybook.bookie.ledger_state import TOMBSTONE, decode_row, encode_row
from tallybook.bookie.storage.entry_log_format import LedgerShare
from tallybook.core.batch import decode_header
from tallybook.core.errors import EntryAbsent, EntryUnknown, MetadataUnavailable, NoSuchLedger
from tallybook.core.ids import NO_ENTRY, ledger_identity
from tallybook.core.limits import BLOCK_BYTES, KIB, SECTOR_BYTES
from tallybook.runtime.deterministic import SimDisk, World, run_seed
from tallybook.sim.stage.disk_bookie import ROOT, DiskBookie, KnownMetadata, batch_of, tiny_settings

Scenario = Callable[[DiskBookie, World], Awaitable[None]]
DROPPED, KEPT = 1, 2
NO_SUCH = NoSuchLedger.wire_code


def play(scenario: Scenario, *, failed: bool = False, collect_interval_ms: int = 0) -> None:
    async def run(world: World) -> None:
        settings = tiny_settings(entry_log_bytes=4 * KIB, collect_interval_ms=collect_interval_ms)
        node = DiskBookie(SimDisk(world.rng), world.clock, KnownMetadata(), settings)
        await node.boot()
        await scenario(node, world)
        await node.stop()
        assert bool(node.failures) == failed

    run_seed(1, run, deadline_seconds=3600)


async def fill(node: DiskBookie, ledger_id: int, *firsts: int, size: int = 1000) -> None:
    """Batches of a ledger, each in a checkpoint of its own: more than two fill an entry log."""
    for first in firsts:
        assert (await node.add(batch_of(first, ledger_id=ledger_id, payload=bytes(size)))).code == 0
        await node.bookie.flush()


def logs_of(node: DiskBookie) -> list[int]:
    return node.bookie._parts.logs.log_ids


async def with_rows(node: DiskBookie) -> list[int]:
    return await node.bookie._parts.index.ledgers_with_rows(NO_ENTRY, 100)


def last_journal_block(disk: SimDisk) -> tuple[str, int]:
    """Where the newest journal block with records in it begins: its file and sector."""
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
        assert (await node.add(batch_of(0, ledger_id=ledger_id), recovery=recovery)).code == NO_SUCH


@pytest.mark.parametrize("unclean", [False, True])
def test_a_released_ledger_is_dropped_for_ever_and_its_neighbour_stays(unclean: bool) -> None:
    async def scenario(node: DiskBookie, world: World) -> None:
        await fill(node, DROPPED, 0, 1)
        await fill(node, KEPT, 0)
        await node.add(batch_of(2, ledger_id=DROPPED))
        node.metadata.fates[DROPPED] = Fate.RELEASED
        await node.bookie.collect()
        assert await with_rows(node) == [KEPT]
        assert node.bookie.stats()["ledgers_dropped_total"] == 1
        for _ in range(3):
            await is_gone(node)
            answer = await node.bookie.read_batches(KEPT, 0, 0, 1)
            assert decode_header(answer.batches[0]).ledger_id == KEPT
            with pytest.raises(EntryAbsent):
                await node.bookie.read_batches(KEPT, 1, 1, 1)
            await (node.lose_power() if unclean else node.stop())
            await node.boot()
        assert await with_rows(node) == [KEPT]
        assert node.bookie.stats()["write_cache_bytes"] == 0

    play(scenario)


def test_e07_a_deleted_ledger_is_dropped_in_the_second_round_and_kept_where_its_id_was_never_given_out() -> None:
    async def scenario(node: DiskBookie, world: World) -> None:
        foreign = node.metadata.id_counter
        for ledger_id in (DROPPED, foreign):
            await fill(node, ledger_id, 0)
            node.metadata.fates[ledger_id] = Fate.DELETED
        await node.bookie.collect()
        assert await with_rows(node) == [DROPPED, foreign]
        assert (await node.bookie.read_batches(DROPPED, 0, 0, 1)).batches
        for _ in range(3):
            await node.bookie.collect()
            assert await with_rows(node) == [foreign]
        await is_gone(node)
        assert (await node.bookie.read_batches(foreign, 0, 0, 1)).batches

    play(scenario)


def test_the_counter_is_read_before_the_first_question_and_nothing_is_deleted_without_it() -> None:
    class Metadata(KnownMetadata):
        away = False
        asked = ""

        async def read_id_counter(self) -> int:
            self.asked += "counter "
            if self.away:
                raise MetadataUnavailable("no answer")
            return self.id_counter

        async def fate_of(self, ledger_id: int, bookie_id: str = "", identity: bytes = b"") -> Fate:
            self.asked += "ledger "
            return await super().fate_of(ledger_id)

    async def run(world: World) -> None:
        metadata = Metadata(fates={DROPPED: Fate.DELETED})
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

    run_seed(1, run, deadline_seconds=3600)


def test_many_ledgers_are_refused_some_at_a_time_and_all_of_them_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collector, "ENDED_AT_ONCE", 3)
    at_once, most = 0, 0

    async def scenario(node: DiskBookie, world: World) -> None:
        fences = node.bookie._parts.collector._held.fences
        delete = fences.delete

        async def counted(ledger_id: int) -> None:
            nonlocal at_once, most
            at_once += 1
            most = max(most, at_once)
            await delete(ledger_id)
            at_once -= 1

        monkeypatch.setattr(fences, "delete", counted)
        for ledger_id in range(10, 18):
            await fill(node, ledger_id, 0)
            node.metadata.fates[ledger_id] = Fate.RELEASED
        await node.bookie.collect()
        assert await with_rows(node) == []
        assert most == 3

    play(scenario)


def test_a_tombstone_is_all_that_stays_and_asks_the_metadata_nothing() -> None:
    async def scenario(node: DiskBookie, world: World) -> None:
        await fill(node, DROPPED, 0)
        await node.bookie.fence(DROPPED, b"")
        node.metadata.fates[DROPPED] = Fate.RELEASED
        await node.bookie.collect()
        await node.stop()
        await node.boot()
        index = node.bookie._parts.index
        state = await index.load_state(DROPPED)
        assert state is not None
        assert len(state) == 6
        assert decode_row(DROPPED, state) == TOMBSTONE
        before = node.metadata.lookups
        await is_gone(node)
        assert node.metadata.lookups == before

    play(scenario)


def test_a_ledger_of_which_only_the_damaged_journal_knew_stays_gone_once_it_was_dropped() -> None:
    """Limbo covers every older ledger; one that was dropped has nothing that could be lost."""

    async def scenario(node: DiskBookie, world: World) -> None:
        await fill(node, DROPPED, 0)
        node.metadata.fates[DROPPED] = Fate.RELEASED
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

    play(scenario)


# -- while others are at it -------------------------------------------------------------------


def test_what_a_checkpoint_is_writing_is_dropped_in_the_next_round() -> None:
    async def scenario(node: DiskBookie, world: World) -> None:
        await fill(node, DROPPED, 0)
        await node.add(batch_of(1, ledger_id=DROPPED))
        node.metadata.fates[DROPPED] = Fate.RELEASED
        node.disk.fail("sync", "entrylog", error=None, delay_seconds=5)
        flush = asyncio.ensure_future(node.bookie.flush())
        await world.clock.sleep(1)
        await node.bookie.collect()
        await is_gone(node)
        assert node.bookie.stats()["ledgers_dropped_total"] == 0
        await flush
        assert await with_rows(node) == [DROPPED]
        await node.bookie.collect()
        assert await with_rows(node) == []

    play(scenario)


def test_a_ledger_that_was_called_gone_is_gone_after_a_crash_although_nothing_was_dropped_yet() -> None:
    async def scenario(node: DiskBookie, world: World) -> None:
        await fill(node, DROPPED, 0)
        await node.add(batch_of(1, ledger_id=DROPPED))
        node.disk.fail("sync", "entrylog", error=None, delay_seconds=60)
        flush = asyncio.ensure_future(node.bookie.flush())
        await world.clock.sleep(1)
        await node.add(batch_of(2, ledger_id=DROPPED))
        node.metadata.fates[DROPPED] = Fate.RELEASED
        await node.bookie.collect()
        await is_gone(node)
        flush.cancel()
        await node.lose_power()
        node.disk.faults.clear()
        await node.boot()
        await is_gone(node)

    play(scenario)


def test_adds_that_come_while_the_ledger_is_dropped_are_refused_or_go_with_it() -> None:
    async def scenario(node: DiskBookie, world: World) -> None:
        await fill(node, DROPPED, 0)
        node.metadata.fates[DROPPED] = Fate.RELEASED
        node.disk.fail("write-durable", "journal/segment", times=1 << 30, error=None, delay_seconds=0.5)
        adds = [node.add(batch_of(1, ledger_id=DROPPED))]
        collecting = asyncio.ensure_future(node.bookie.collect())
        for number in range(2, 8):
            await world.clock.sleep(0.002)
            adds.append(node.add(batch_of(number, ledger_id=DROPPED), recovery=number % 2 == 0))
        codes = [(await add).code for add in adds]
        assert codes == sorted(codes)
        assert {codes[0], codes[-1]} == {0, NO_SUCH}
        await collecting
        node.disk.faults.clear()
        await node.bookie.flush()
        assert await with_rows(node) == []
        await is_gone(node)

    play(scenario)


def test_a_reader_in_the_middle_of_a_ledger_gets_its_bytes_or_hears_that_it_is_gone() -> None:
    async def scenario(node: DiskBookie, world: World) -> None:
        await fill(node, DROPPED, *range(6))
        await fill(node, KEPT, *range(6))
        node.metadata.fates[DROPPED] = Fate.RELEASED
        node.disk.fail("read", "entrylog", times=1 << 30, error=None, delay_seconds=1)
        reads = [asyncio.ensure_future(node.bookie.read_batches(DROPPED, number, 9, 1 << 20)) for number in range(6)]
        await world.clock.sleep(0.5)
        await node.bookie.collect()
        node.disk.faults.clear()
        await node.bookie.collect()
        assert node.bookie.stats()["entry_logs_removed_total"] > 0
        for answer in await asyncio.gather(*reads, return_exceptions=True):
            assert isinstance(answer, NoSuchLedger) or answer.batches

    play(scenario)


def test_a_stop_waits_for_the_change_that_is_under_way_and_stays_a_clean_one() -> None:
    async def scenario(node: DiskBookie, world: World) -> None:
        await fill(node, DROPPED, *range(8))
        await fill(node, KEPT, 0)
        node.metadata.fates[DROPPED] = Fate.RELEASED
        node.disk.fail("unlink", "entrylog", error=None, delay_seconds=5)
        while "unlink" not in [fault.operation for fault in node.disk.faults if fault.seen]:
            await world.clock.sleep(0.1)
        await node.stop()
        assert node.failures == []
        await node.boot()
        assert node.bookie.stats()["flushed_batches_total"] == 0

    play(scenario, collect_interval_ms=1_000)


# -- entry logs -------------------------------------------------------------------------------


def test_logs_of_which_nothing_is_kept_are_removed_and_no_others() -> None:
    async def scenario(node: DiskBookie, world: World) -> None:
        await fill(node, DROPPED, *range(8))
        alone = logs_of(node)[:-1]
        assert len(alone) > 1
        await fill(node, KEPT, 0)
        await fill(node, DROPPED, *range(8, 16))
        before, size = logs_of(node), node.bookie.stats()["entry_log_bytes"]
        node.metadata.fates[DROPPED] = Fate.RELEASED
        await node.bookie.collect()
        left = logs_of(node)
        assert not set(alone) & set(left)
        assert left[-1] == before[-1] + 1, "the last one was dead, too; as ids only grow, an empty one follows it"
        stats = node.bookie.stats()
        assert stats["entry_logs_removed_total"] == len(set(before) - set(left))
        assert stats["entry_log_bytes"] < size - stats["entry_log_bytes_removed_total"] + 10 * KIB
        names = await node.disk.list(f"{ROOT}/ledgers")
        assert len([name for name in names if name.startswith("entrylog")]) == len(left)
        await node.lose_power()
        await node.boot()
        assert logs_of(node) == left
        assert (await node.bookie.read_batches(KEPT, 0, 0, 1)).batches

    play(scenario)


@pytest.mark.parametrize("refused", [False, True])
@pytest.mark.parametrize("dropped", [False, True])
def test_a_log_holds_nothing_where_its_ledger_is_refused_for_ever_and_has_no_rows(refused: bool, dropped: bool) -> None:
    async def scenario(node: DiskBookie, world: World) -> None:
        await fill(node, DROPPED, *range(4))
        parts = node.bookie._parts
        states = {DROPPED: encode_row(DROPPED, TOMBSTONE)} if refused else {}
        await parts.index.apply((), states, drop_rows=[DROPPED] if dropped else [])
        assert await parts.collector.reclaimer._holds_nothing(logs_of(node)[0]) is (refused and dropped)

    play(scenario)


def test_logs_that_another_life_left_are_removed_in_the_first_round_of_this_one() -> None:
    async def scenario(node: DiskBookie, world: World) -> None:
        await fill(node, DROPPED, *range(8))
        await fill(node, KEPT, 0)
        node.metadata.fates[DROPPED] = Fate.RELEASED
        node.disk.fail("unlink", "entrylog", error=None, delay_seconds=60)
        collecting = asyncio.ensure_future(node.bookie.collect())
        await world.clock.sleep(5)
        await node.lose_power()
        await asyncio.gather(collecting, return_exceptions=True)
        node.disk.faults.clear()
        await node.boot()
        assert await with_rows(node) == [KEPT]
        before = logs_of(node)
        await node.bookie.collect()
        assert logs_of(node) == before[-1:] or len(logs_of(node)) < len(before)
        assert (await node.bookie.read_batches(KEPT, 0, 0, 1)).batches

    play(scenario)


def test_ids_of_logs_grow_although_all_that_was_written_is_dropped() -> None:
    async def scenario(node: DiskBookie, world: World) -> None:
        await fill(node, DROPPED, *range(8))
        highest = logs_of(node)[-1]
        node.metadata.fates[DROPPED] = Fate.RELEASED
        await node.stop()
        await node.boot()
        await node.bookie.collect()
        assert logs_of(node) == [highest]
        await node.stop()
        await node.boot()
        await fill(node, KEPT, 0)
        assert logs_of(node)[-1] == highest + 1

    play(scenario)


def test_e01_a_log_with_a_ledger_that_has_no_rows_goes_once_each_batch_was_looked_at() -> None:
    async def scenario(node: DiskBookie, world: World) -> None:
        await fill(node, DROPPED, *range(8))
        await fill(node, KEPT, 0)
        _, strange, *_ = logs_of(node)
        original = node.bookie._parts.logs.complete_map

        async def complete_map(log_id: int) -> dict[int, object]:
            return {**await original(log_id), **({999: LedgerShare(1, 1)} if log_id == strange else {})}

        node.bookie._parts.logs.complete_map = complete_map  # type: ignore[method-assign, assignment]
        node.metadata.fates[DROPPED] = Fate.RELEASED
        await node.bookie.collect()
        assert strange not in logs_of(node)
        assert node.bookie.stats()["entry_logs_removed_total"] > 0

    play(scenario)


# -- what goes wrong --------------------------------------------------------------------------


@pytest.mark.parametrize("operation", [("write", "changes.log"), ("sync", "changes.log"), ("unlink", "entrylog")])
def test_a_change_that_fails_ends_the_node_and_the_next_life_ends_what_was_begun(operation: tuple[str, str]) -> None:
    async def scenario(node: DiskBookie, world: World) -> None:
        await fill(node, DROPPED, *range(8))
        await fill(node, KEPT, 0)
        node.metadata.fates[DROPPED] = Fate.RELEASED
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

    play(scenario, collect_interval_ms=1_000)


def test_metadata_that_hang_hold_up_a_round_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(node: DiskBookie, world: World) -> None:
        async def hangs(_ledger_id: int) -> Fate:
            await asyncio.Event().wait()
            return Fate.RELEASED

        for ledger_id in range(1, 10):
            await node.add(batch_of(0, ledger_id=ledger_id))
        await node.bookie.flush()
        monkeypatch.setattr(node.bookie._parts.collector, "_fate_of", hangs)
        begun = world.clock.monotonic()
        await node.bookie.collect()
        assert world.clock.monotonic() - begun < 60
        assert await with_rows(node) == list(range(1, 10))

    play(scenario)


def test_a_count_of_ledgers_in_limbo_that_takes_long_holds_up_no_round() -> None:
    async def scenario(node: DiskBookie, world: World) -> None:
        collector: Collector = node.bookie._parts.collector
        begun = []

        async def count(held: int, *, believed: bool = True) -> None:
            begun.append(world.clock.monotonic())
            await world.clock.sleep(100)

        collector._limbo.count = count  # type: ignore[method-assign]
        await world.clock.sleep(5)
        for _ in range(3):
            before = collector.rounds
            node.bookie.request_collection()
            await world.clock.sleep(0.5)
            assert collector.rounds > before
        assert len(begun) == 1

    play(scenario, collect_interval_ms=1000)


def test_a_ledger_is_asked_about_at_the_pace_of_the_settings() -> None:
    async def scenario(node: DiskBookie, world: World) -> None:
        for ledger_id in range(1, 17):
            node.metadata.identities[ledger_id] = ledger_identity(f"creator of {ledger_id}")
            assert (await node.add(batch_of(0, ledger_id=ledger_id))).code == 0
        await node.bookie.flush()
        collector: Collector = node.bookie._parts.collector
        collector._pace._per_second = 4
        begun = world.clock.monotonic()
        await node.bookie.collect()
        assert 3.9 < world.clock.monotonic() - begun < 5

    play(scenario)


def test_rounds_that_cannot_be_made_are_counted_and_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(node: DiskBookie, world: World) -> None:
        await world.clock.sleep(2.5)
        told = node.bookie.readings()
        assert told["collector_rounds_total"] == told["collections_seconds"].count == 2
        assert told["collector_failures_total"] == 0

        async def away(*_: object) -> None:
            raise EntryUnknown("the index cannot be asked")

        monkeypatch.setattr(node.bookie._parts.index, "survey_ledgers", away)
        await world.clock.sleep(3)
        told = node.bookie.readings()
        assert (told["collector_rounds_total"], told["collector_failures_total"]) == (2, 3)

    play(scenario, collect_interval_ms=1_000)
