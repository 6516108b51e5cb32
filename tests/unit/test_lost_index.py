"""A bookie that lost its index rebuilds it from its entry logs, and then all ledgers are in limbo."""

import pytest

from tallybook.bookie.directories.cookie import Cookie, decode_cookie
from tallybook.bookie.directories.limbo import Limbo, load_limbo, store_limbo
from tallybook.bookie.ledgers.confirmed_prefix import ConfirmedPrefix
from tallybook.bookie.ledgers.disposition import LedgerDisposition
from tallybook.bookie.storage.entry_log.format import log_name
from tallybook.bookie.storage.entry_log.logs import EntryLogs
from tallybook.bookie.storage.index.survey import RangeSurvey
from tallybook.core.add_kind import AddKind
from tallybook.core.errors import (
    DiskFailed,
    EntryAbsent,
    EntryUnknown,
    ForeignDirectory,
    MetadataUnavailable,
    NoSuchLedger,
)
from tallybook.core.limits import BLOCK_BYTES
from tallybook.runtime.clock import Clock
from tallybook.sim.deterministic import NO_LATENCY, Latency, SimClock, SimDisk, World
from tallybook.sim.stage.disk_bookie import ROOT, DiskBookie, KnownMetadata, batch_of, tiny_settings

from ..simulated import simulated
from ..support.damage import said_of as answer_of
from ..support.log_lines import line_of
from .loss_parts import empty

LEDGERS = (1, 2, 3)
ENTRIES = 5
BELOW = 50
INDEX = f"{ROOT}/index"
SETTINGS = tiny_settings(entry_log_bytes=8 * BLOCK_BYTES)


SETTLED = {ledger_id: ConfirmedPrefix(ENTRIES - 1, closed=True) for ledger_id in (*LEDGERS, 4)}


def big(entry_id: int, ledger_id: int = 1, payload: bytes = b"x") -> bytes:
    return batch_of(entry_id, ledger_id=ledger_id, payload=payload * 900)


async def filled(world: World, *, settings=SETTINGS, latency: Latency = NO_LATENCY) -> DiskBookie:
    """A bookie with three ledgers in several entry logs, the first one fenced, that has stopped."""
    disk, metadata = SimDisk(world.rng, latency=latency), KnownMetadata(id_counter=BELOW, confirmed_prefixes=SETTLED)
    node = DiskBookie(disk, world.clock, metadata, settings)
    await node.boot()
    for entry_id in range(ENTRIES):
        for ledger_id in LEDGERS:
            assert (await node.add(big(entry_id, ledger_id))).code == 0
        await node.bookie.flush()
    await node.bookie.fence(1, b"")
    await node.stop()
    return node


async def said_of(node: DiskBookie, ledger_id: int, entry_id: int) -> str:
    return await answer_of(node, ledger_id, entry_id, big(entry_id, ledger_id))


async def all_of(node: DiskBookie, ledger_id: int) -> list[str]:
    """The answer for each entry, and for the one after the last."""
    return [await said_of(node, ledger_id, entry_id) for entry_id in range(ENTRIES + 1)]


async def first_log(node: DiskBookie) -> str:
    return (await logs_of(node.disk))[0]


async def logs_of(disk: SimDisk) -> list[str]:
    names = await disk.list(f"{ROOT}/ledgers")
    return [f"{ROOT}/ledgers/{name}" for name in sorted(names) if name.startswith("entrylog")]


@pytest.mark.parametrize("what", ["everything", "the cookie", "the contents", "a part of the contents"])
@simulated
async def test_j19_a_lost_index_is_made_again_with_every_batch_and_every_ledger_in_limbo(
    world: World, *, what: str
) -> None:
    node = await filled(world)
    match what:
        case "everything":
            await empty(node.disk, INDEX)
        case "the cookie":
            await node.disk.unlink(f"{INDEX}/cookie")
        case "the contents":
            await node.disk.unlink(f"{INDEX}/changes.log")
        case _:
            node.disk.rot.zero_sector(f"{INDEX}/changes.log", 0)
    await node.boot()
    for ledger_id in LEDGERS:
        assert await all_of(node, ledger_id) == ["held"] * ENTRIES + ["EntryUnknown"]
        assert (await node.add(big(ENTRIES, ledger_id))).code == EntryUnknown.wire_code, "a fence may be lost"
        with pytest.raises(EntryUnknown):
            await node.bookie.fence(ledger_id, b"")
    assert await said_of(node, BELOW - 1, 0) == "EntryUnknown", "all of a ledger may be lost"
    assert await said_of(node, BELOW, 0) == "EntryAbsent"
    assert (await node.add(big(0, BELOW))).code == 0
    await node.bookie.end_limbo(2)
    assert (await node.bookie.read_lac(2)).lac == ENTRIES - 2, "the batches carry it"
    await node.stop()
    limbo = await load_limbo(node.disk, f"{ROOT}/limbo")
    assert (limbo.events, limbo.below, limbo.index) == (1, BELOW, 1)


@simulated
async def test_j19_what_is_in_the_journal_only_is_replayed_over_the_new_index_with_its_fence(world: World) -> None:
    node = await filled(world)
    await node.boot()
    assert (await node.add(big(0, 4))).code == 0
    await node.bookie.fence(4, b"")
    await node.kill()
    await empty(node.disk, INDEX)
    await node.boot()
    assert await said_of(node, 4, 0) == "held"
    assert await said_of(node, 4, 1) == "EntryUnknown"
    await node.bookie.end_limbo(4)
    assert await said_of(node, 4, 1) == "EntryAbsent"
    await node.stop()


@simulated
async def test_a_new_index_leaves_it_to_garbage_collection_which_ledgers_go_and_when(world: World) -> None:
    deleted, released, missing = LEDGERS
    delay_s = SETTINGS.collection.missing_delay_s // 4
    collection = SETTINGS.collection.model_copy(update={"deleted_delay_s": delay_s})
    node = await filled(world, settings=SETTINGS.model_copy(update={"collection": collection}))
    await empty(node.disk, INDEX)
    node.metadata.dispositions = {
        deleted: LedgerDisposition.DELETED,
        released: LedgerDisposition.RELEASED,
        missing: LedgerDisposition.MISSING,
    }
    await node.boot()
    for ledger_id in LEDGERS:
        assert await all_of(node, ledger_id) == ["held"] * ENTRIES + ["EntryUnknown"]
        assert (await node.add(big(ENTRIES, ledger_id))).code == EntryUnknown.wire_code, "it may be fenced"
    await node.bookie.collect()
    assert await said_of(node, released, 0) == "NoSuchLedger"
    assert await said_of(node, deleted, 0) == "held", "its metadata may come back"
    await world.clock.sleep(delay_s)
    await node.bookie.collect()
    assert await all_of(node, deleted) == ["NoSuchLedger"] * (ENTRIES + 1)
    assert (await node.add(big(0, deleted), kind=AddKind.RECOVERY)).code == NoSuchLedger.wire_code
    assert await said_of(node, missing, 0) == "held", "no operator has approved it"
    await node.stop()


class AwayMetadata(KnownMetadata):
    """Metadata that do not answer for a while."""

    def __init__(self, before: KnownMetadata, clock: Clock, away_seconds: float) -> None:
        super().__init__(cookies=before.cookies, id_counter=BELOW, confirmed_prefixes=SETTLED)
        self._clock = clock
        self._back = clock.monotonic() + away_seconds

    async def read_id_counter(self) -> int:
        if self._clock.monotonic() < self._back:
            await self._clock.sleep(3_600)
        return BELOW


@pytest.mark.parametrize(("lost", "timeout_s"), [(True, 120), (False, 60)], ids=["lost index", "replacement"])
@simulated
async def test_a_bookie_that_needs_the_id_counter_waits_for_it_but_not_for_ever_and_changes_nothing(
    world: World, *, lost: bool, timeout_s: float
) -> None:
    node = await filled(world)
    if lost:
        await empty(node.disk, INDEX)
    else:
        await store_limbo(node.disk, f"{ROOT}/limbo", Limbo(1, 0, awaits_registration=True))
    known = node.metadata
    node.metadata = AwayMetadata(known, world.clock, 7_200)
    began = world.clock.monotonic()
    with pytest.raises(MetadataUnavailable, match="id counter cannot be read"):
        await node.boot()
    assert world.clock.monotonic() - began < timeout_s
    assert (await load_limbo(node.disk, f"{ROOT}/limbo")).events == (0 if lost else 1)
    node.metadata = AwayMetadata(known, world.clock, 20 if lost else 0)
    await node.boot()
    assert await all_of(node, 2) == ["held"] * ENTRIES + ["EntryUnknown"]
    await node.stop()


@simulated
async def test_the_index_of_another_bookie_is_refused_and_not_taken_for_a_lost_one(world: World) -> None:
    node = await filled(world)
    await node.disk.replace_file(f"{INDEX}/cookie", Cookie("b9", "another-uuid", "cluster-a").encode())
    with pytest.raises(ForeignDirectory, match="belongs to bookie b9"):
        await node.boot()


@simulated
async def test_the_old_index_stays_until_the_bookie_has_stopped_cleanly_and_an_old_one_that_comes_back_is_not_used(
    world: World,
) -> None:
    node = await filled(world)
    old = {name: node.disk.peek(f"{INDEX}/{name}") for name in await node.disk.list(INDEX)}
    await node.disk.unlink(f"{INDEX}/cookie")
    await node.boot()
    assert await node.disk.list(INDEX) == ["changes.log"]
    for ledger_id in LEDGERS:
        await node.bookie.end_limbo(ledger_id)
    assert (await node.add(big(ENTRIES, 2), kind=AddKind.RECOVERY)).code == 0
    await node.kill()
    await node.boot()
    assert await node.disk.list(INDEX) == ["changes.log"]
    await node.stop()
    # The disk of the old index is mounted again.
    for name, data in old.items():
        await node.disk.replace_file(f"{INDEX}/{name}", data)
    await node.boot()
    assert await node.disk.list(INDEX) == []
    assert await said_of(node, 2, ENTRIES) == "held"
    assert await said_of(node, 2, ENTRIES + 1) == "EntryAbsent"
    await node.stop()
    await empty(node.disk, f"{INDEX}.1")
    await node.boot()
    assert await said_of(node, 2, ENTRIES) == "held"
    assert await said_of(node, 2, ENTRIES + 1) == "EntryUnknown", "it is in limbo once more"
    assert (await load_limbo(node.disk, f"{ROOT}/limbo")).index == 2
    await node.stop()


@simulated
async def test_a_damaged_stretch_costs_the_new_index_what_is_in_it_and_no_more(
    world: World, *, caplog: pytest.LogCaptureFixture
) -> None:
    node = await filled(world)
    first = await first_log(node)
    node.disk.rot.flip_bit(first, BLOCK_BYTES + 70, 1)  # in the table of its first range
    await empty(node.disk, INDEX)
    await node.boot()
    for ledger_id in LEDGERS:
        said = await all_of(node, ledger_id)
        assert said == ["EntryUnknown"] + ["held"] * (ENTRIES - 1) + ["EntryUnknown"]
    assert any(first in line_of(record) for record in caplog.records if "new index" in record.getMessage())
    assert (await node.add(big(0, 2), kind=AddKind.RECOVERY)).code == 0
    assert await said_of(node, 2, 0) == "held"
    await node.stop()


@simulated
async def test_c20_of_two_copies_the_intact_one_counts_and_of_two_that_differ_none(world: World) -> None:
    """Of ledgers 1 and 2 a repair put copies in the place of damaged ones, of 2 another; of 3 the later is damaged."""
    node = await filled(world)
    first = await first_log(node)
    good = {ledger_id: node.disk.peek(first).index(big(0, ledger_id)) for ledger_id in LEDGERS}
    for ledger_id in (1, 2):
        node.disk.rot.flip_bit(first, good[ledger_id] + 200, 1)
    await node.boot()
    assert (await node.add(big(0, 1), kind=AddKind.RECOVERY)).code == 0
    assert (await node.add(big(0, 2, b"y"), kind=AddKind.RECOVERY)).code == 0
    await node.bookie.flush()
    await node.stop()
    node.disk.rot.flip_bit(first, good[2] + 200, 1)  # and it is what it was
    await append_to_logs(node, big(0, 3))
    last = (await logs_of(node.disk))[-1]
    node.disk.rot.flip_bit(last, node.disk.peek(last).index(big(0, 3)) + 200, 1)
    await empty(node.disk, INDEX)
    await node.boot()
    for ledger_id in (1, 3):
        assert await all_of(node, ledger_id) == ["held"] * ENTRIES + ["EntryUnknown"]
    assert await all_of(node, 2) == ["EntryUnknown"] + ["held"] * (ENTRIES - 1) + ["EntryUnknown"]
    # What the other bookies have is taken.
    assert (await node.add(big(0, 2), kind=AddKind.RECOVERY)).code == 0
    await node.bookie.flush()
    await node.bookie.end_limbo(2)
    assert await all_of(node, 2) == ["held"] * ENTRIES + ["EntryAbsent"]
    await node.stop()


@simulated
async def test_what_others_left_among_the_logs_is_not_put_into_a_new_index(world: World) -> None:
    node = await filled(world)
    first = await first_log(node)
    await node.disk.replace_file(f"{ROOT}/ledgers/{log_name(0x1234)}", node.disk.peek(first))
    await empty(node.disk, INDEX)
    await node.boot()
    row = await node.parts.index.find(2, 0)
    assert row is not None
    assert row.location.log_id == 1
    assert await all_of(node, 2) == ["held"] * ENTRIES + ["EntryUnknown"]
    await node.stop()


@pytest.mark.parametrize("torn", [False, True])
@simulated
async def test_what_a_crash_left_behind_the_durable_end_of_a_log_gets_a_row_only_if_it_is_whole(
    world: World, *, torn: bool
) -> None:
    node = await filled(world)
    uuid = decode_cookie(node.disk.peek(f"{ROOT}/cookie"), "cookie").directory_uuid
    logs = await EntryLogs.open(node.disk, [f"{ROOT}/ledgers"], uuid, SETTINGS.storage, world.clock)
    (location,) = await logs.append([big(ENTRIES, 2)])
    await node.kill()
    last = (await logs_of(node.disk))[-1]
    if torn:
        await (await node.disk.open(last)).write(location.offset + location.size - 1, [b"?"])
    await empty(node.disk, INDEX)
    await node.boot()
    assert await all_of(node, 2) == ["held"] * ENTRIES + ["EntryUnknown" if torn else "held"]
    await node.stop()


@simulated
async def test_a_log_that_the_device_does_not_give_keeps_the_bookie_down_and_nothing_has_changed(world: World) -> None:
    """Entries left out of the new index could be taken for dead, and be removed."""
    node = await filled(world)
    first = await first_log(node)
    await empty(node.disk, INDEX)
    node.disk.fail("read", first, nth=3, times=3)
    with pytest.raises(DiskFailed):
        await node.boot()
    node.disk.faults.clear()
    assert (await load_limbo(node.disk, f"{ROOT}/limbo")).events == 0
    await node.boot()
    for ledger_id in LEDGERS:
        assert await all_of(node, ledger_id) == ["held"] * ENTRIES + ["EntryUnknown"]
    await node.stop()


async def append_to_logs(node: DiskBookie, *batches: bytes) -> None:
    """Put batches into a log of their own, durably, which no row ever pointed at."""
    uuid = decode_cookie(node.disk.peek(f"{ROOT}/cookie"), "cookie").directory_uuid
    logs = await EntryLogs.open(node.disk, [f"{ROOT}/ledgers"], uuid, SETTINGS.storage, SimClock())
    await logs.append(batches)
    await logs.close()


@pytest.mark.parametrize(
    ("copies", "unknown"),
    [
        ([big(7, 2), big(7, 2, b"y")], {7}),
        ([batch_of(7, 4, ledger_id=2), batch_of(9, 4, ledger_id=2, payload=b"y")], {7, 8, 9, 10, 11, 12}),
        ([batch_of(9, 4, ledger_id=2), batch_of(7, 4, ledger_id=2, payload=b"y")], {7, 8, 9, 10, 11, 12}),
        ([batch_of(8, 2, ledger_id=2), batch_of(7, 4, ledger_id=2, payload=b"y")], {7, 8, 9, 10}),
    ],
)
@simulated
async def test_c20_of_copies_in_one_log_that_differ_or_overlap_none_counts_and_their_neighbours_do(
    world: World, *, copies: list[bytes], unknown: set[int]
) -> None:
    node = await filled(world)
    await append_to_logs(node, *copies, big(13, 2))
    await empty(node.disk, INDEX)
    await node.boot()
    rows = await node.parts.index.find_range(2, 0, 20, 100)
    nowhere = [range(row.first_entry_id, row.last_entry_id + 1) for row in rows if not row.location.log_id]
    assert {each for entries in nowhere for each in entries} == unknown
    assert {await said_of(node, 2, each) for each in unknown} == {"EntryUnknown"}
    assert await all_of(node, 2) == ["held"] * ENTRIES + ["EntryUnknown"]
    assert await said_of(node, 2, 13) == "held"
    await node.stop()


@pytest.mark.parametrize("bring", ["repair", "recovery"])
@pytest.mark.parametrize("crashes", [False, True])
@pytest.mark.parametrize(
    ("copies", "good"),
    [
        ([(5, 3), (7, 3)], [(5, 3), (8, 2)]),
        ([(5, 3), (7, 3)], [(7, 3), (5, 2)]),
        ([(7, 3), (5, 3)], [(5, 5)]),
        ([(6, 1), (8, 1), (5, 5)], [(5, 4), (9, 1)]),
        ([(5, 5), (6, 2)], [(6, 2), (8, 2), (5, 1)]),
    ],
)
@simulated
async def test_overlapping_copies_keep_no_good_one_with_any_bounds_out(
    world: World, *, copies: list[tuple[int, int]], good: list[tuple[int, int]], bring: str, crashes: bool
) -> None:
    """The bytes of one of them may be those that a repair brings, or none of them."""
    node = await filled(world)
    node.metadata.confirmed_prefixes[2] = ConfirmedPrefix(9, closed=True)
    await append_to_logs(node, *(batch_of(first, count, ledger_id=2) for first, count in copies))
    await empty(node.disk, INDEX)
    await node.boot()
    for at, (first, count) in enumerate(good):
        data = batch_of(first, count, ledger_id=2)
        for _ in range(2):
            assert (await node.add(data, kind=AddKind(bring))).code == 0
        if crashes:
            await node.lose_power()
            await node.boot()
        elif at % 2:
            await node.bookie.flush()
    await node.bookie.flush()
    for first, count in good:
        for entry_id in range(first, first + count):
            answer = await node.bookie.read_batches(2, entry_id, entry_id, 1)
            assert answer.batches == (batch_of(first, count, ledger_id=2),)
    rows = await node.parts.index.find_range(2, 5, 20, 100)
    assert [(row.first_entry_id, row.location.entry_count) for row in rows] == sorted(good)
    assert (await node.bookie.held(2, 5, 9)).ranges[0].last == 9
    await node.stop()
    assert node.failures == []


@pytest.mark.parametrize("flushed", ["before", "just now"])
@simulated
async def test_way_is_not_made_over_a_good_copy_that_came_meanwhile(
    world: World, *, monkeypatch: pytest.MonkeyPatch, flushed: str
) -> None:
    """The neighbour is put between reading and changing the rows; its row is written before the cache releases it."""
    neighbour, late = batch_of(5, 2, ledger_id=2), batch_of(7, 3, ledger_id=2)
    node = await filled(world)
    node.metadata.confirmed_prefixes[2] = ConfirmedPrefix(9, closed=True)
    await append_to_logs(node, batch_of(5, 5, ledger_id=2), batch_of(7, 1, ledger_id=2))
    await empty(node.disk, INDEX)
    await node.boot()
    index, cache = node.parts.index, node.parts.cache
    survey, release = index.survey, cache.release
    looks: list[int] = []

    async def slow_survey(*asked: int) -> RangeSurvey:
        told = await survey(*asked)
        looks.append(asked[1])
        if looks == [7]:
            assert (await node.add(neighbour, kind=AddKind.REPAIR)).code == 0
            if flushed == "just now":
                monkeypatch.setattr(cache, "release", lambda: None)
            await node.bookie.flush()
        return told

    monkeypatch.setattr(index, "survey", slow_survey)
    code = (await node.add(late, kind=AddKind.REPAIR)).code
    monkeypatch.setattr(index, "survey", survey)
    monkeypatch.setattr(cache, "release", release)
    assert code == 0
    if flushed == "just now":
        release()
    await node.bookie.flush()
    for entry_id in range(5, 10):
        answer = await node.bookie.read_batches(2, entry_id, entry_id, 1)
        assert answer.batches == (neighbour if entry_id < 7 else late,)
    await node.stop()


@simulated
async def test_what_is_left_of_copies_that_overlap_stays_unknown(world: World) -> None:
    node = await filled(world)
    node.metadata.confirmed_prefixes[2] = ConfirmedPrefix(9, closed=True)
    await append_to_logs(node, batch_of(5, 3, ledger_id=2), batch_of(7, 5, ledger_id=2))
    await empty(node.disk, INDEX)
    await node.boot()
    assert (await node.add(batch_of(6, 2, ledger_id=2), kind=AddKind.REPAIR)).code == 0
    await node.bookie.flush()
    await node.bookie.end_limbo(2)
    for entry_id in (5, 8, 9, 10, 11):
        with pytest.raises(EntryUnknown):
            await node.bookie.read_batches(2, entry_id, entry_id, 1)
    with pytest.raises(EntryAbsent):
        await node.bookie.read_batches(2, 12, 12, 1)
    await node.stop()


@simulated
async def test_what_a_start_that_was_cut_off_has_left_is_no_part_of_the_new_index(world: World) -> None:
    node = await filled(world)
    await node.disk.make_directory(f"{INDEX}.1")
    await node.disk.replace_file(f"{INDEX}.1/changes.log", node.disk.peek(f"{INDEX}/changes.log"))
    await node.disk.unlink(await first_log(node))
    await empty(node.disk, INDEX)
    await node.boot()
    assert await node.parts.index.find(1, 0) is None, "its log is gone"
    assert await said_of(node, 1, 0) == "EntryUnknown"
    await node.stop()


@simulated
async def test_an_old_index_that_cannot_be_removed_keeps_no_bookie_down(
    world: World, *, caplog: pytest.LogCaptureFixture
) -> None:
    node = await filled(world)
    await node.disk.unlink(f"{INDEX}/cookie")
    await node.disk.make_directory(f"{INDEX}/lost+found")
    await node.disk.replace_file(f"{INDEX}/lost+found/1", b"of the file system")
    await node.boot()
    await node.stop()
    node.disk.fail("unlink", f"{INDEX}/changes.log")
    await node.boot()
    assert "cannot be removed" in caplog.text
    assert await said_of(node, 2, 0) == "held"
    await node.stop()
    await node.boot()
    assert await node.disk.list(INDEX) == ["lost+found"]
    assert await node.disk.list(f"{INDEX}/lost+found") == ["1"]
    await node.stop()


@simulated
async def test_the_steps_of_a_start_are_timed_and_an_index_rebuild_is_one_of_them(world: World) -> None:
    node = await filled(world, latency=Latency(mean_seconds=0.001))
    await node.boot()
    found = node.bookie.readings()
    assert found["boot_index_seconds"] > 0 == found["boot_index_again_seconds"]
    assert found["boot_journal_seconds"] > 0
    assert found["boot_entry_logs_seconds"] > 0
    assert (await node.add(big(ENTRIES, 2))).code == 0
    await node.lose_power()
    await empty(node.disk, INDEX)
    await node.boot()
    found = node.bookie.readings()
    assert found["boot_index_seconds"] == 0 < found["boot_index_again_seconds"]
    assert found["boot_replay_seconds"] > 0
    await node.stop()
