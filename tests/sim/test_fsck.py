"""fsck: a healthy cluster has no findings, and each kind of damage is found."""

from __future__ import annotations

import itertools
import json
from contextlib import aclosing
from dataclasses import replace

import pytest

from tallybook.bookie.directories import cookie as cookies_of_bookies
from tallybook.client.client import Client
from tallybook.client.ports import ClientWorld
from tallybook.core.settings import RepairSettings
from tallybook.metadata import codec
from tallybook.metadata.ledger.archived import ArchiveAttempt, begin_archiving
from tallybook.metadata.ledger.repaired import replace_member
from tallybook.metadata.records.replaced_bookies import record_replacement
from tallybook.metadata.store import BookieInfo, Ok, WriteResult
from tallybook.metadata.stream_use import CURSOR, STREAM
from tallybook.repair.fsck.fsck import Fsck, FsckFinding, OpenArchive
from tallybook.repair.fsck.records import RECORD_KINDS
from tallybook.repair.service import RepairService
from tallybook.repair.tasks import TaskBoard
from tallybook.stream import StreamStore
from tallybook.stream.catalog.head import MAX_SEGMENTS
from tallybook.stream.record_kinds import STREAM_KINDS, STREAM_OWNERS

from ..simulated import scenario
from ..support.archive_stage import ArchiveStage
from ..support.ledger_scenario import SMALL, eventually
from ..support.memory_cluster import MemoryCluster
from .parts import closed_id as closed
from .parts import cut_listings_off, running

KINDS = (*RECORD_KINDS, *STREAM_KINDS)


async def cookies(cluster: MemoryCluster, world: ClientWorld) -> None:
    """Write the cookies of simulated bookies."""
    for name, bookie in cluster.bookies.items():
        await world.store.write_cookie(name, cookie(name, bookie.incarnation.directory_uuid))


def cookie(name: str, directory_uuid: str) -> bytes:
    from tallybook.bookie.directories.cookie import Cookie  # noqa: PLC0415

    return Cookie(name, directory_uuid, "cluster").encode()


async def found_in(world: ClientWorld, bucket: OpenArchive | None = None) -> list[FsckFinding]:
    return [found async for found in Fsck(world, KINDS, STREAM_OWNERS, bucket, None).run()]


async def the_only_one(world: ClientWorld, bucket: OpenArchive | None = None) -> FsckFinding:
    [found] = await found_in(world, bucket)
    return found


@scenario(bookies=4)
async def test_nothing_is_found_in_a_cluster_with_streams_subscriptions_archive_tasks_and_a_replaced_bookie(
    cluster: MemoryCluster, client: Client
) -> None:
    await cookies(cluster, client.world)
    await record_replacement(client.world.store, "bookie-1", "the uuid of its directory")
    async with ArchiveStage(cluster) as stage, StreamStore(client, name="x") as streams:
        ledgers = [await closed(client) for _ in range(3)]
        await stage.archive(*ledgers[:2])
        await stage.release(ledgers[0])
        await streams.create("orders", roll_bytes=1 << 20)
        async with await streams.writer("orders") as writer:
            for at in range(5):
                await writer.append(b"record %d" % at)
        board = TaskBoard(client.world.store, client.world.clock, client.world.rng.fork("b"), lease_s=5)
        from tallybook.repair.tasks import make_tasks  # noqa: PLC0415

        await board.publish(make_tasks(ledgers, thorough=True, why="x"))
        check = Fsck(client.world, KINDS, STREAM_OWNERS, OpenArchive(stage.store, stage.reader), None)
        assert [found async for found in check.run()] == []
        assert (check.totals.findings, check.totals.notes) == (0, 0)
        assert check.totals.steps > 15


@scenario(bookies=3)
async def test_missing_and_damaged_copies_are_found_and_with_repair_restored(
    cluster: MemoryCluster, client: Client
) -> None:
    await cookies(cluster, client.world)
    ledgers = [await closed(client) for _ in range(3)]
    one, other, _ = (await client.ledger_metadata(ledgers[0])).last_fragment.bookies
    cluster.bookies[one].drop(ledgers[0], 0)
    cluster.bookies[other].faults.rot(ledgers[1], 0)
    before = await found_in(client.world)
    assert [(found.how_bad, found.where.split(",")[0]) for found in before] == [
        ("bad", f"ledger {ledgers[0]}"),
        ("bad", f"ledger {ledgers[1]}"),
    ]
    assert (await client.world.store.list_records("repair/tasks/")).names == (), "a dry run changes nothing"
    board = TaskBoard(client.world.store, client.world.clock, client.world.rng.fork("b"), lease_s=5)
    check = Fsck(client.world, KINDS, STREAM_OWNERS, None, board)
    assert len([found async for found in check.run()]) == check.totals.mended == 2
    async with cluster.client(SMALL) as repairing:
        replicator = RepairService(repairing, RepairSettings(lease_s=5)).replicator
        async with running(replicator.run()):
            await eventually(lambda: replicator.totals.tasks == 1, cluster, 60)
    assert await found_in(client.world) == []


@scenario(bookies=3)
async def test_an_entry_without_copies_is_lost_and_a_missing_bookie_is_not_repaired_over(
    cluster: MemoryCluster, client: Client
) -> None:
    await cookies(cluster, client.world)
    ledger_id = await closed(client)
    for name in (await client.ledger_metadata(ledger_id)).last_fragment.bookies:
        cluster.bookies[name].drop(ledger_id, 7)
    found = await found_in(client.world)
    assert [each.how_bad for each in found] == ["lost"] * 3
    assert [each.fix for each in found] == [None] * 3
    cluster.die("bookie-1")
    away = [each for each in await found_in(client.world) if "does not answer" in each.what]
    assert [(each.how_bad, each.fix) for each in away] == [("bad", None)]


@scenario(bookies=3)
async def test_what_a_bookie_holds_of_a_deleted_ledger_is_a_note(cluster: MemoryCluster, client: Client) -> None:
    await cookies(cluster, client.world)
    ledger_id, kept = await closed(client), await closed(client)
    await client.delete_ledger(ledger_id)
    found = await found_in(client.world)
    assert {(each.how_bad, each.where) for each in found} == {
        ("note", f"bookie {name}, ledger {ledger_id}") for name in cluster.bookies
    }
    assert kept in [each async for each in client.list_ledgers()]


@scenario(bookies=4)
async def test_copies_that_are_left_over_at_a_bookie_that_is_not_named_any_more_are_a_note(
    cluster: MemoryCluster, client: Client
) -> None:
    await cookies(cluster, client.world)
    store, ledger_id = client.world.store, await closed(client)
    before = await store.read_ledger(ledger_id)
    old = before.value.last_fragment.bookies[0]
    [spare] = set(cluster.bookies) - set(before.value.last_fragment.bookies)
    assert isinstance(await store.update_ledger(replace_member(before.value, 0, 0, old, spare), before.version), Ok)
    found = {(each.how_bad, each.where): each for each in await found_in(client.world)}
    assert {how_bad for how_bad, where in found if spare in where} == {"bad"}
    left = found["note", f"bookie {old}, ledger {ledger_id}"]
    assert "names other bookies" in left.what
    assert "unnamed_delay_s" in left.remedy


@scenario(bookies=3)
async def test_a_listing_that_is_cut_off_is_a_finding_wherever_it_happens(
    cluster: MemoryCluster, client: Client
) -> None:
    await cookies(cluster, client.world)
    async with ArchiveStage(cluster) as stage:
        await closed(client)
        cut_listings_off(client.world.store)
        found = await found_in(client.world, OpenArchive(stage.store, stage.reader))
    assert sorted((each.how_bad, each.where) for each in found if "incomplete" in each.what) == [
        ("bad", "bucket"), ("bad", "copies"), ("bad", "metadata"),
    ]  # fmt: skip


@scenario(bookies=1)
async def test_a_task_that_changes_while_it_is_deleted_is_not_reported_as_deleted(
    cluster: MemoryCluster, client: Client
) -> None:
    store = client.world.store
    await cookies(cluster, client.world)
    await store.write_record("repair/tasks/0-x", b"rubbish", None)
    deletes = store.delete_record

    async def late(name: str, version: int) -> WriteResult:
        return await deletes(name, version + 1)

    store.delete_record = late  # type: ignore[method-assign]
    board = TaskBoard(store, client.world.clock, client.world.rng.fork("b"), lease_s=5)
    check = Fsck(client.world, KINDS, STREAM_OWNERS, None, board)
    [found] = [each async for each in check.run()]
    assert (found.fix, check.totals.mended) == (None, 0)
    assert "run fsck again" in found.remedy


@scenario(bookies=1)
async def test_an_unreadable_task_is_deleted_with_repair_and_any_other_record_is_only_reported(
    cluster: MemoryCluster, client: Client
) -> None:
    store = client.world.store
    await cookies(cluster, client.world)
    for name in ("repair/tasks/0-x", "bookies/mode/bookie-0", "stream-heads/ab/abc", "sinks/s", "archive/location"):
        await store.write_record(name, b"\xff{", None)
    await store.write_record("from-the-future/x", b"", None)
    board = TaskBoard(store, client.world.clock, client.world.rng.fork("b"), lease_s=5)
    assert len(await found_in(client.world)) == 6
    assert len((await store.list_records()).names) == 6, "a dry run deletes nothing"
    check = Fsck(client.world, KINDS, STREAM_OWNERS, None, board)
    found = {each.where: each async for each in check.run()}
    assert {where: each.how_bad for where, each in found.items()} == {
        "repair/tasks/0-x": "bad",
        "bookies/mode/bookie-0": "bad",
        "stream-heads/ab/abc": "bad",
        "sinks/s": "bad",
        "archive/location": "bad",
        "from-the-future/x": "note",
    }
    assert (check.totals.mended, check.totals.findings, check.totals.notes) == (1, 5, 1)
    assert set((await store.list_records()).names) == found.keys() - {"repair/tasks/0-x"}


@scenario(bookies=3)
async def test_a_stream_whose_ledger_was_deleted_and_a_name_that_leads_nowhere_are_found(
    cluster: MemoryCluster, client: Client
) -> None:
    await cookies(cluster, client.world)
    async with StreamStore(client, name="x") as streams:
        await streams.create("orders")
        async with await streams.writer("orders") as writer:
            await writer.append(b"one")
        [ledger_id] = [each async for each in client.list_ledgers()]
        await client.delete_ledger(ledger_id, force=True)
        lost = [each for each in await found_in(client.world) if each.how_bad == "lost"]
        assert [f"names ledger {ledger_id}, which does not exist" in each.what for each in lost] == [True]
        [head] = (await client.world.store.list_records("stream-heads/")).names
        record = await client.world.store.read_record(head)
        assert record is not None
        await client.world.store.delete_record(head, record.version)
        told = [each for each in await found_in(client.world) if each.where.startswith("stream-names/")]
        assert ["leads to" in each.what for each in told] == [True]


@scenario(bookies=3)
async def test_every_segment_in_head_and_chapters_and_every_cursor_ledger_is_named_by_its_owner(
    cluster: MemoryCluster, client: Client
) -> None:
    await cookies(cluster, client.world)
    async with StreamStore(client, name="x") as streams:
        await streams.create("orders", roll_bytes=1024)
        async with await streams.writer("orders") as writer:
            for _ in range(2 * MAX_SEGMENTS + 20):
                await writer.append(b"x" * 1024)
        async with (
            await streams.subscribe("orders", "billing") as subscription,
            aclosing(subscription.batches()) as batches,
        ):
            batch = await anext(batches)
            assert isinstance(batch, list)
            await subscription.advance(batch[-1].position)
            custom = [(await client.ledger_metadata(each)).custom async for each in client.list_ledgers()]
            assert sum(CURSOR in each for each in custom) == 1
            assert sum(STREAM in each for each in custom) > MAX_SEGMENTS
            assert len((await client.world.store.list_records("stream-chapters/")).names) == 1
            assert await found_in(client.world) == []


@scenario(bookies=1)
async def test_an_orphan_ledger_of_a_stream_is_found(cluster: MemoryCluster, client: Client) -> None:
    await cookies(cluster, client.world)
    for key, value in itertools.product((STREAM, CURSOR), (b"cec032ad/1", b"/", b"", b"\xff/../1", b"\x00")):
        ledger = await client.create_ledger(ensemble=1, write_quorum=1, ack_quorum=1, custom={key: value})
        found = await the_only_one(client.world)
        assert (found.where, found.how_bad, found.fix) == (f"ledger {ledger.id}", "bad", None)
        assert "does not name it" in found.what
        assert f"ledger rm {ledger.id}" in found.remedy
        await client.delete_ledger(ledger.id)


@scenario(bookies=2)
async def test_ids_above_the_counter_metadata_that_cannot_be_read_and_wrong_cookies_are_found(
    cluster: MemoryCluster, client: Client
) -> None:
    await cookies(cluster, client.world)
    store = client.world.store
    ledger = await client.create_ledger(ensemble=1, write_quorum=1, ack_quorum=1)
    await ledger.close()
    counter = await store.id_counter()
    strange = replace(await client.ledger_metadata(ledger.id), ledger_id=counter + 5, creator_token="restored")
    await store.create_ledger(strange)
    above = await the_only_one(client.world)
    assert (above.where, above.how_bad) == (f"ledger {counter + 5}", "bad")
    await client.delete_ledger(counter + 5)

    info = (await client.world.membership.bookies())["bookie-0"]
    await store.write_cookie("bookie-0", cookie("bookie-0", "another"), replace=True)
    assert "its cookie names another" in (await the_only_one(client.world)).what
    await store.write_cookie("bookie-0", b"rubbish", replace=True)
    assert "cannot be decoded" in (await the_only_one(client.world)).what
    await store.delete_cookie("bookie-0")
    assert "no cookie" in (await the_only_one(client.world)).what
    assert isinstance(info, BookieInfo)


@scenario(bookies=3)
async def test_missing_short_and_orphan_objects_are_found(cluster: MemoryCluster, client: Client) -> None:
    await cookies(cluster, client.world)
    async with ArchiveStage(cluster) as stage:
        bucket = OpenArchive(stage.store, stage.reader)
        kept, released = await closed(client), await closed(client)
        await stage.archive(kept)
        await stage.archive(released)
        await stage.release(released)
        receipts = [(await client.ledger_metadata(each)).archived for each in (kept, released)]
        assert await found_in(client.world, bucket) == []
        data = {each.key: await stage.store.read(each.key, 0, each.object_bytes) for each in receipts if each}
        for receipt, how_bad in zip(receipts, ("bad", "lost"), strict=True):
            assert receipt is not None
            await stage.store.delete(receipt.key)
            stage.reader.forget(receipt.key)
            found = await the_only_one(client.world, bucket)
            assert (found.how_bad, found.what) == (how_bad, "the object does not exist")
            await stage.store.put(receipt.key, data[receipt.key][:-1])
            assert "bytes, and should have" in (await the_only_one(client.world, bucket)).what
            rotten = bytearray(data[receipt.key])
            rotten[receipt.index.offset + 3] ^= 1
            await stage.store.put(receipt.key, bytes(rotten))
            assert "damaged" in (await the_only_one(client.world, bucket)).what
            await stage.store.put(receipt.key, data[receipt.key])
            stage.reader.forget(receipt.key)
        await client.delete_ledger(kept)
        for bookie in cluster.bookies.values():
            bookie.delete(kept)
        orphan = await the_only_one(client.world, bucket)
        assert receipts[0] is not None
        assert (orphan.how_bad, orphan.where) == ("note", receipts[0].key)


@scenario(bookies=3)
async def test_an_object_that_is_announced_is_no_orphan(cluster: MemoryCluster, client: Client) -> None:
    await cookies(cluster, client.world)
    async with ArchiveStage(cluster) as stage:
        bucket = OpenArchive(stage.store, stage.reader)
        ledger_id, other = await closed(client), await closed(client)
        await stage.archive(ledger_id)
        receipt = (await client.ledger_metadata(ledger_id)).archived
        assert receipt is not None
        await client.delete_ledger(ledger_id)
        for bookie in cluster.bookies.values():
            bookie.delete(ledger_id)
        assert (await the_only_one(client.world, bucket)).where == receipt.key
        attempt = ArchiveAttempt(receipt.object_id, 1)
        await cluster.edit(other, lambda m: begin_archiving(m, attempt, from_object=None, ttl_ms=1))
        assert await found_in(client.world, bucket) == []


@scenario(bookies=3)
async def test_what_a_newer_version_has_written_is_a_note_and_stays(cluster: MemoryCluster, client: Client) -> None:
    monkeypatch = pytest.MonkeyPatch()
    await cookies(cluster, client.world)
    store, ledger_id = client.world.store, await closed(client)
    task = {"format": 2, "ledgers": [[0, 1 << 40]], "leaving": "nobody"}
    await store.write_record("repair/tasks/0-x", json.dumps(task).encode(), None)
    await store.write_record("sinks/sales", b'{"format":3}', None)
    closed_ledger = await client.ledger_metadata(ledger_id)
    with monkeypatch.context() as newer:
        newer.setattr(cookies_of_bookies, "VERSION", 2)
        newer.setattr(codec, "FORMAT", 2)
        await store.write_cookie("bookie-1", cookie("bookie-1", "x"), replace=True)
        stored = cluster.metadata.ledgers[ledger_id]
        stored.value = codec.encode_ledger(closed_ledger)
    board = TaskBoard(store, client.world.clock, client.world.rng.fork("b"), lease_s=5)
    check = Fsck(client.world, KINDS, STREAM_OWNERS, None, board)
    found = {each.where: each async for each in check.run()}
    for where in ("repair/tasks/0-x", "sinks/sales", "bookie bookie-1", f"ledger {ledger_id}"):
        assert (found[where].how_bad, found[where].fix) == ("note", None)
        assert "a newer Tallybook wrote it" in found[where].what
    assert set((await store.list_records("")).names) == {"repair/tasks/0-x", "sinks/sales"}
