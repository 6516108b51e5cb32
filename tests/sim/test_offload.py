"""Closed ledgers are moved to an object store and read from there transparently."""

from collections import Counter
from collections.abc import Sequence

import pytest

from tallybook.archive.objects.port import ObjectStore
from tallybook.client.client import Client
from tallybook.core.batch import BatchHeader
from tallybook.core.buffers import Buffer
from tallybook.core.errors import (
    BookieUnavailable,
    DataMissing,
    EntryAbsent,
    EntryCorrupt,
    ObjectDamaged,
    ObjectMissing,
    Unauthorized,
)
from tallybook.metadata.ledger.model import DigestType, LedgerMetadata
from tallybook.offload.mover import Moved
from tallybook.offload.policy import Due

from ..simulated import scenario
from ..support.archive_stage import ArchiveStage
from ..support.ledger_scenario import lines, read_all
from ..support.memory_cluster import MemoryCluster
from .parts import closed_ledger


async def sealed(client: Client, ledger_id: int) -> list[tuple[BatchHeader, Buffer]]:
    metadata = await client.ledger_metadata(ledger_id)
    groups = client.copying_reader(metadata).read_sealed(0, metadata.last_entry_id)
    return [batch async for group in groups for batch in group]


async def forget(stage: ArchiveStage, key: str) -> None:
    """Remove the object, also from the caches of a reader."""
    await stage.store.delete(key)
    stage.reader.forget(key)


async def objects(store: ObjectStore) -> list[str]:
    return [found.key async for page in store.list() for found in page]


@scenario()
async def test_an_archived_ledger_is_the_same_to_the_last_bit_wherever_it_is_read(
    cluster: MemoryCluster, client: Client
) -> None:
    ledger = await closed_ledger(client)
    from_bookies = await sealed(client, ledger.id)
    async with ArchiveStage(cluster) as stage:
        assert (await stage.archive(ledger.id)).archived == (ledger.id,)
        await stage.release(ledger.id)
        assert await sealed(stage.client, ledger.id) == from_bookies
        assert await read_all(stage.client, ledger.id) == lines(40)
        reader = await stage.client.open_ledger(ledger.id)
        assert [(await reader.read_entry(at)).payload for at in (0, 6, 7, 39)] == [
            lines(40)[at] for at in (0, 6, 7, 39)
        ]
        assert [entry.payload async for entry in reader.read(5, 8)] == lines(4, 5)
        with pytest.raises(EntryAbsent):
            await anext(reader.read_unconfirmed(40, 41))


@scenario()
async def test_half_of_a_ledger_comes_from_bookies_and_half_from_the_archive(
    cluster: MemoryCluster, client: Client
) -> None:
    ledger = await closed_ledger(client)
    async with ArchiveStage(cluster) as stage:
        await stage.archive(ledger.id)
        for bookie in cluster.bookies.values():
            for entry_id in range(20, 40):
                bookie.drop(ledger.id, entry_id)
        assert await read_all(stage.client, ledger.id) == lines(40)
        with pytest.raises(DataMissing):
            await read_all(client, ledger.id)


@scenario()
async def test_the_archive_stands_in_for_bookies_that_do_not_answer(cluster: MemoryCluster, client: Client) -> None:
    ledger = await closed_ledger(client)
    async with ArchiveStage(cluster) as stage:
        await stage.archive(ledger.id)
        for name in cluster.bookies:
            cluster.die(name)
        assert await read_all(stage.client, ledger.id) == lines(40)
        await forget(stage, (await objects(stage.store))[0])
        # No copies were released: an operator has to look after the bookies.
        with pytest.raises(BookieUnavailable):
            await read_all(stage.client, ledger.id)


@scenario()
async def test_a_signed_ledger_is_archived_without_its_password_and_read_only_with_it(
    cluster: MemoryCluster, client: Client
) -> None:
    ledger = await closed_ledger(client, password=b"secret", digest=DigestType.HMAC_SHA256)
    async with ArchiveStage(cluster) as stage:
        await stage.archive(ledger.id)
        await stage.release(ledger.id)
        assert await read_all(stage.client, ledger.id, b"secret") == lines(40)
        reader = await stage.client.open_ledger(ledger.id, password=b"secret")
        assert (await reader.read_entry(17)).payload == lines(1, 17)[0]
        with pytest.raises(Unauthorized):
            await read_all(stage.client, ledger.id)


@scenario()
async def test_a_batch_with_another_digest_is_damage_and_not_an_error_of_the_reader(
    cluster: MemoryCluster, client: Client
) -> None:
    """Everything else in the object is consistent, so that only a reader with the password can detect it."""
    ledger = await closed_ledger(client, password=b"secret", digest=DigestType.HMAC_SHA256)
    async with ArchiveStage(cluster) as stage:
        await stage.archive(ledger.id)
        await stage.release(ledger.id)
        reader = await stage.client.open_ledger(ledger.id, password=b"secret")
        reader._fetcher._digest_key = b"another key".ljust(32)
        with pytest.raises(EntryCorrupt, match="damaged batch"):
            await reader.read_entry(3)


@scenario()
async def test_a_reader_follows_a_ledger_that_moves_to_another_object(cluster: MemoryCluster, client: Client) -> None:
    ledgers = [await closed_ledger(client) for _ in range(3)]
    async with ArchiveStage(cluster) as stage:
        for ledger in ledgers:
            await stage.archive(ledger.id)
            await stage.release(ledger.id)
        before = await objects(stage.store)
        reader = await stage.client.open_ledger(ledgers[0].id)
        reading = reader.read(0, 39)
        assert (await anext(reading)).payload == lines(1)[0]
        moved = await stage.archive(*(ledger.id for ledger in ledgers))
        assert moved.archived == tuple(ledger.id for ledger in ledgers)
        for key in before:
            await stage.store.delete(key)
        stage.reader.forget(before[0])
        assert [entry.payload async for entry in reading] == lines(39, 1)
        for ledger in ledgers:
            assert await read_all(stage.client, ledger.id) == lines(40)


@scenario()
async def test_a_released_ledger_whose_object_is_gone_or_damaged_gives_a_typed_error(
    cluster: MemoryCluster, client: Client
) -> None:
    ledger = await closed_ledger(client)
    async with ArchiveStage(cluster) as stage:
        await stage.archive(ledger.id)
        await stage.release(ledger.id)
        key = (await objects(stage.store))[0]
        size = (await stage.store.info(key)).size_bytes
        good = await stage.store.read(key, 0, size)
        for bad in (good[:100], bytes(size), b""):
            await stage.store.put(key, bad)
            stage.reader.forget(key)
            with pytest.raises(ObjectDamaged, match=key):
                await read_all(stage.client, ledger.id)
        await forget(stage, key)
        with pytest.raises(ObjectMissing, match=key):
            await read_all(stage.client, ledger.id)
        await stage.store.put(key, good)
        assert await read_all(stage.client, ledger.id) == lines(40)


@scenario()
async def test_of_two_movers_at_once_one_commits_and_nothing_is_in_two_objects(
    cluster: MemoryCluster, client: Client
) -> None:
    ledger = await closed_ledger(client)
    async with ArchiveStage(cluster) as stage:
        planned = await stage.planned(ledger.id)

        class Slow:
            """Runs another mover when this one has written its object."""

            def __init__(self) -> None:
                self.overtaken = False

            def __getattr__(self, name: str) -> object:
                return getattr(stage.store, name)

            async def info(self, key: str) -> object:
                if not self.overtaken:
                    self.overtaken = True
                    assert (await stage.mover().move(planned)).archived == ()
                    await cluster.world.clock.sleep(stage.settings.attempt_ttl_s)
                    assert (await stage.mover().move(planned)).archived == (ledger.id,)
                return await stage.store.info(key)

        assert (await stage.mover(Slow()).move(planned)).archived == ()  # type: ignore[arg-type]
        receipt = (await client.ledger_metadata(ledger.id)).archived
        assert receipt is not None
        assert receipt.key in await objects(stage.store)
        await stage.release(ledger.id)
        assert await read_all(stage.client, ledger.id) == lines(40)


@scenario()
async def test_many_ledgers_that_cannot_be_read_cost_one_more_attempt_and_not_one_each(
    cluster: MemoryCluster, client: Client
) -> None:
    ledgers = [await closed_ledger(client, 8) for _ in range(9)]
    bad = [ledgers[at].id for at in (1, 2, 4, 7, 8)]
    for bookie in cluster.bookies.values():
        for ledger_id in bad:
            bookie.drop(ledger_id, 3)
    async with ArchiveStage(cluster) as stage:
        mover, announced = stage.mover(), Counter[str]()
        announce = mover._announce

        async def counted(ledger: Due, object_id: str) -> LedgerMetadata | None:
            announced[object_id] += 1
            return await announce(ledger, object_id)

        mover._announce = counted  # type: ignore[method-assign]
        moved = await mover.move(await stage.planned(*(ledger.id for ledger in ledgers)))
        assert sorted(announced.values()) == [4, 9]
        assert [ledger_id for ledger_id, _ in moved.failed] == bad
        assert moved.archived == tuple(ledger.id for ledger in ledgers if ledger.id not in bad)
        for ledger in ledgers:
            assert (await client.ledger_metadata(ledger.id)).archiving is None


@scenario()
async def test_ledgers_that_fail_one_after_the_other_are_set_aside_together(
    cluster: MemoryCluster, client: Client
) -> None:
    """The metadata can be read, but not written."""
    ledgers = [await closed_ledger(client, 8) for _ in range(9)]
    async with ArchiveStage(cluster) as stage:
        mover, attempts = stage.mover(), 0
        attempt = mover._attempt

        async def failing(wanted: Sequence[Due]) -> Moved:
            nonlocal attempts
            for bookie in cluster.bookies.values():
                bookie.drop(ledgers[attempts].id, 3)
            attempts += 1
            return await attempt(wanted)

        mover._attempt = failing  # type: ignore[method-assign]
        moved = await mover.move(await stage.planned(*(ledger.id for ledger in ledgers)))
        assert (attempts, moved.archived) == (3, ())
        assert [ledger_id for ledger_id, _ in moved.failed] == [ledger.id for ledger in ledgers]
        assert [why for _, why in moved.failed if "keep failing" in why] == [why for _, why in moved.failed[3:]]
        for ledger in ledgers[3:]:
            assert (await client.ledger_metadata(ledger.id)).archiving is None
