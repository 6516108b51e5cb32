"""The trace of one entry: all copies on bookies and in the archive, with their defects."""

from __future__ import annotations

from typing import NoReturn

import pytest

from tallybook.archive.objects.memory import MemoryObjectStore
from tallybook.client.client import Client
from tallybook.core.batch import verify_batch
from tallybook.core.errors import AccessDenied, NoSuchLedger, ReadBeyondLac
from tallybook.repair.status.entry_trace import trace_entry

from ..simulated import scenario
from ..support.archive_stage import ArchiveStage
from ..support.ledger_scenario import eventually
from ..support.memory_cluster import MemoryCluster
from .parts import closed_id as closed
from .parts import written_ledger


def crc_at(cluster: MemoryCluster, name: str, ledger_id: int) -> int:
    return verify_batch(cluster.bookies[name].durable_batches(ledger_id)[0]).crc


@scenario(bookies=4)
async def test_every_copy_is_traced_with_the_checksum_that_its_writer_gave_it(
    cluster: MemoryCluster, client: Client
) -> None:
    ledger_id = await closed(client)
    found = await trace_entry(client.world, ledger_id, 3)
    names = found.metadata.bookies_of(3)
    assert tuple(copy.bookie_id for copy in found.copies) == names
    assert {copy.trace.batch_crc for copy in found.copies if copy.trace} == {crc_at(cluster, names[0], ledger_id)}
    assert (found.problems, found.intact, found.wanted, found.same) == ([], 3, 3, True)
    assert all(copy.alive and copy.trace and copy.trace.places for copy in found.copies)


@scenario(bookies=3)
async def test_a_damaged_absent_or_silent_copy_is_reported_and_counts_as_missing(
    cluster: MemoryCluster, client: Client
) -> None:
    ledger_id = await closed(client)
    one, other, third = (await client.ledger_metadata(ledger_id)).last_fragment.bookies
    cluster.bookies[one].faults.rot(ledger_id, 0)
    cluster.bookies[other].drop(ledger_id, 0)
    cluster.die(third)
    found = await trace_entry(client.world, ledger_id, 0)
    assert [(copy.verdict, copy.alive) for copy in found.copies] == [
        ("damaged", True),
        ("absent", True),
        ("no answer", False),
    ]
    assert found.problems == ["0 bookies have an intact copy, and 3 should"]


@scenario(bookies=3)
async def test_a_bookie_that_refuses_hides_no_copy_of_another(cluster: MemoryCluster, client: Client) -> None:
    ledger_id = await closed(client)
    one, *_ = (await client.ledger_metadata(ledger_id)).last_fragment.bookies

    async def refused(*_asked: object) -> NoReturn:
        raise AccessDenied("reader may not read")

    cluster.bookies[one].trace = refused  # type: ignore[method-assign]
    found = await trace_entry(client.world, ledger_id, 0)
    assert [(copy.verdict, copy.why) for copy in found.copies if copy.bookie_id == one] == [
        ("no answer", "reader may not read")
    ]
    assert found.intact == 2


@scenario(bookies=3)
async def test_copies_that_are_intact_and_differ_are_found(cluster: MemoryCluster, client: Client) -> None:
    ledger_id, other = await closed(client), await closed(client, 19)
    one, *_ = (await client.ledger_metadata(ledger_id)).last_fragment.bookies
    bookie = cluster.bookies[one]
    trace = bookie.trace

    async def of_the_other(_ledger_id: int, entry_id: int):
        return await trace(other, entry_id)

    bookie.trace = of_the_other  # type: ignore[method-assign]
    found = await trace_entry(client.world, ledger_id, 0)
    assert (found.intact, found.same) == (3, False)
    assert found.problems == ["intact copies differ: they are not of the same batch"]


@scenario(bookies=3)
async def test_the_copy_in_the_archive_is_traced_and_is_enough_once_bookies_may_drop_theirs(
    cluster: MemoryCluster, client: Client
) -> None:
    async with ArchiveStage(cluster) as stage:
        ledger_id = await closed(client)
        await stage.archive(ledger_id)
        both = await trace_entry(stage.client.world, ledger_id, 7)
        assert (both.problems, both.intact, both.same) == ([], 3, True)
        assert both.archive is not None
        assert both.archive.place is not None
        name = both.metadata.last_fragment.bookies[0]
        assert both.archive.place.batch_crc == crc_at(cluster, name, ledger_id)
        assert both.archive.place.row == 7
        await stage.release(ledger_id)
        alone = await trace_entry(stage.client.world, ledger_id, 7)
        assert (alone.problems, alone.intact, alone.wanted) == ([], 0, 0)
        assert both.archive.object_key == both.archive.place.object_key
        without = await trace_entry(client.world, ledger_id, 7)
        assert ["no archive" in problem for problem in without.problems] == [True]


@pytest.mark.parametrize(("harm", "verdict"), [("gone", "absent"), ("rotten", "damaged")])
@scenario(bookies=3)
async def test_a_changed_object_is_reported(cluster: MemoryCluster, client: Client, *, harm: str, verdict: str) -> None:
    store = MemoryObjectStore(cluster.world.clock, name="harmed")
    async with ArchiveStage(cluster, store=store) as stage:
        ledger_id = await closed(client)
        await stage.archive(ledger_id)
        receipt = (await client.ledger_metadata(ledger_id)).archived
        assert receipt is not None
        place = await stage.reader.place(receipt, ledger_id, 0)
        data = bytearray(await store.read(receipt.key, 0, receipt.object_bytes))
        await store.delete(receipt.key)
        stage.reader.forget(receipt.key)
        if harm == "rotten":
            data[place.page_offset + place.page_bytes // 2] ^= 1
            await store.put(receipt.key, bytes(data))
        found = await trace_entry(stage.client.world, ledger_id, 0)
        assert found.archive is not None
        assert found.archive.verdict == verdict
        assert "the archive's copy is not intact" in found.problems[0]


@scenario(bookies=3)
async def test_an_open_ledger_needs_an_ack_quorum_of_copies_and_a_missing_entry_is_no_entry(
    cluster: MemoryCluster, client: Client
) -> None:
    ledger = await written_ledger(client, 5)
    name = ledger.metadata.last_fragment.bookies[2]
    for first in list(cluster.bookies[name].durable_batches(ledger.id)):
        cluster.bookies[name].drop(ledger.id, first)
    found = await trace_entry(client.world, ledger.id, 0)
    assert (found.growing, found.intact, found.wanted, found.problems) == (True, 2, 2, [])
    with pytest.raises(ReadBeyondLac, match="still open"):
        await trace_entry(client.world, ledger.id, 5)
    await ledger.close()
    assert (await trace_entry(client.world, ledger.id, 0)).problems == ["2 bookies have an intact copy, and 3 should"]
    with pytest.raises(ReadBeyondLac, match="ends at entry 4"):
        await trace_entry(client.world, ledger.id, 5)
    with pytest.raises(NoSuchLedger):
        await trace_entry(client.world, 999, 0)


@scenario(bookies=3)
async def test_a_damaged_copy_in_an_open_ledger_is_reported_although_others_are_enough(
    cluster: MemoryCluster, client: Client
) -> None:
    ledger = await written_ledger(client, 3)
    one, *_ = (await client.ledger_metadata(ledger.id)).last_fragment.bookies
    await eventually(lambda: bool(cluster.bookies[one].durable_batches(ledger.id)), cluster, 10)
    cluster.bookies[one].faults.rot(ledger.id, 0)
    found = await trace_entry(client.world, ledger.id, 0)
    assert found.intact >= found.wanted
    assert found.problems == [f"the copy of {one} is damaged"]
    ledger.abandon()
