"""Closed ledgers go to an object store, and are read from there as if nothing had happened."""

import io
from collections import Counter
from collections.abc import Sequence

import pyarrow.parquet as pq
import pytest

from tallybook.archive.objects.port import ObjectStore
from tallybook.client.client import Client
from tallybook.client.writer.handle import LedgerWriter
from tallybook.core.batch import BatchHeader, Buffer
from tallybook.core.errors import (
    ArchiveUnavailable,
    BookieUnavailable,
    DataMissing,
    EntryAbsent,
    EntryCorrupt,
    ObjectDamaged,
    ObjectMissing,
    TallybookError,
    Unauthorized,
)
from tallybook.metadata.model import DigestType, LedgerMetadata
from tallybook.offload.mover import Moved
from tallybook.offload.policy import Due, PlannedObject
from tallybook.sim.stage.archive import ArchiveStage
from tallybook.sim.stage.cluster import MemoryCluster
from tallybook.sim.stage.scenario import lines, read_all, scenario


async def closed_ledger(client: Client, count: int = 40, **options: object) -> LedgerWriter:
    """A closed ledger of ``count`` entries in several batches."""
    ledger = await client.create_ledger(**options)  # type: ignore[arg-type]
    for at in range(0, count, 7):
        await ledger.append_many(lines(min(7, count - at), at))
    await ledger.close()
    return ledger


async def sealed(client: Client, ledger_id: int) -> list[tuple[BatchHeader, Buffer]]:
    metadata = await client.ledger_metadata(ledger_id)
    groups = client.copying_reader(metadata).read_sealed(0, metadata.last_entry_id)
    return [batch async for group in groups for batch in group]


async def forget(stage: ArchiveStage, key: str) -> None:
    """The object is gone, and so is what a reader has cached of it."""
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
async def test_what_lies_in_the_bucket_is_plain_parquet_and_has_a_receipt(
    cluster: MemoryCluster, client: Client
) -> None:
    ledger = await closed_ledger(client)
    async with ArchiveStage(cluster) as stage:
        await stage.archive(ledger.id)
        metadata = await client.ledger_metadata(ledger.id)
        receipt = metadata.archived
        assert receipt is not None
        assert metadata.archiving is None
        assert await objects(stage.store) == [receipt.key]
        data = await stage.store.read(receipt.key, 0, receipt.object_bytes)
        assert pq.read_table(io.BytesIO(data))["payload"].to_pylist() == lines(40)
        assert (receipt.entries, receipt.payload_bytes) == (40, metadata.length)


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
        # Nothing has been let go: it is the bookies that somebody has to see to.
        with pytest.raises(BookieUnavailable):
            await read_all(stage.client, ledger.id)


@scenario()
async def test_small_ledgers_share_an_object_and_each_is_read_alone(cluster: MemoryCluster, client: Client) -> None:
    ledgers = [await closed_ledger(client, count) for count in (3, 0, 40, 1)]
    async with ArchiveStage(cluster) as stage:
        moved = await stage.archive(*(ledger.id for ledger in ledgers))
        assert moved.archived == tuple(ledger.id for ledger in ledgers)
        assert len(await objects(stage.store)) == 1
        for ledger, count in zip(ledgers, (3, 0, 40, 1), strict=True):
            await stage.release(ledger.id)
            assert await read_all(stage.client, ledger.id) == lines(count)


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
async def test_a_batch_with_another_digest_is_damage_and_not_the_fault_of_who_reads_it(
    cluster: MemoryCluster, client: Client
) -> None:
    """Everything else in the object fits, so that only who knows the password can tell."""
    ledger = await closed_ledger(client, password=b"secret", digest=DigestType.HMAC_SHA256)
    async with ArchiveStage(cluster) as stage:
        await stage.archive(ledger.id)
        await stage.release(ledger.id)
        reader = await stage.client.open_ledger(ledger.id, password=b"secret")
        reader._digest_key = b"another key".ljust(32)
        with pytest.raises(EntryCorrupt, match="bad batch"):
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


class Hindered:
    """A store as one mover sees it: its n-th call of a kind fails, before or after it took effect."""

    def __init__(self, store: ObjectStore, *, call: int, after: bool) -> None:
        self._store = store
        self._left = call
        self._after = after
        self.failed = False

    @property
    def url(self) -> str:
        return self._store.url

    async def _through(self, work: object) -> object:
        self._left -= 1
        if self._left == 0 and not self._after:
            self.failed = True
            work.close()  # type: ignore[attr-defined]
            raise ArchiveUnavailable("the store has gone away")
        found = await work  # type: ignore[misc]
        if self._left == 0:
            self.failed = True
            raise ArchiveUnavailable("the store has gone away")
        return found

    def upload(self, key: str) -> object:
        upload, through = self._store.upload(key), self._through

        class Part:
            async def write(self, data: Buffer) -> None:
                await through(upload.write(data))

            async def finish(self) -> None:
                await through(upload.finish())

            async def abort(self) -> None:
                await upload.abort()

        return Part()

    async def info(self, key: str) -> object:
        return await self._through(self._store.info(key))

    async def read(self, key: str, offset: int, size: int) -> object:
        return await self._through(self._store.read(key, offset, size))

    async def read_many(self, key: str, ranges: Sequence[tuple[int, int]]) -> object:
        return await self._through(self._store.read_many(key, ranges))


@scenario()
async def test_a_store_that_fails_at_any_step_leaves_the_ledgers_as_they_were(
    cluster: MemoryCluster, client: Client
) -> None:
    ledgers = [await closed_ledger(client) for _ in range(2)]
    async with ArchiveStage(cluster) as stage:
        for after in (False, True):
            planned = await stage.planned(*(ledger.id for ledger in ledgers))
            before = [await client.ledger_metadata(ledger.id) for ledger in ledgers]
            call = 1
            while await failed_at(stage, planned, call, after=after):
                assert [await client.ledger_metadata(ledger.id) for ledger in ledgers] == before
                assert await stage.store.unfinished_uploads() == []
                call += 1
            assert call > 10
            # What the failures left in the bucket belongs to nobody, and keeps nobody from the next attempt.
            for ledger in ledgers:
                assert (await client.ledger_metadata(ledger.id)).archived is not None
                assert await read_all(stage.client, ledger.id) == lines(40)


async def failed_at(stage: ArchiveStage, planned: PlannedObject, call: int, *, after: bool) -> bool:
    """Move with a store whose n-th call fails; say whether there was one."""
    hindered = Hindered(stage.store, call=call, after=after)
    try:
        await stage.mover(hindered).move(planned)  # type: ignore[arg-type]
    except ArchiveUnavailable:
        return True
    assert not hindered.failed
    return False


@scenario()
async def test_of_two_movers_at_once_one_commits_and_nothing_is_in_two_objects(
    cluster: MemoryCluster, client: Client
) -> None:
    ledger = await closed_ledger(client)
    async with ArchiveStage(cluster) as stage:
        planned = await stage.planned(ledger.id)

        class Slow:
            """Lets another mover do all of its work when this one has written its object."""

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
async def test_a_ledger_that_cannot_be_read_is_left_out_and_the_others_go(
    cluster: MemoryCluster, client: Client
) -> None:
    good, bad = await closed_ledger(client), await closed_ledger(client)
    for bookie in cluster.bookies.values():
        bookie.drop(bad.id, 21)
    async with ArchiveStage(cluster) as stage:
        moved = await stage.archive(good.id, bad.id)
        assert moved.archived == (good.id,)
        assert [ledger_id for ledger_id, _ in moved.failed] == [bad.id]
        left = await client.ledger_metadata(bad.id)
        assert left.archived is None
        assert left.archiving is None


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
    """Each is read when it is looked at, and fails when it is to be written."""
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


@scenario()
async def test_a_ledger_deleted_while_it_is_archived_is_not_brought_back(
    cluster: MemoryCluster, client: Client
) -> None:
    kept, deleted = await closed_ledger(client), await closed_ledger(client)
    async with ArchiveStage(cluster) as stage:
        planned = await stage.planned(kept.id, deleted.id)

        class Deleting:
            def __getattr__(self, name: str) -> object:
                return getattr(stage.store, name)

            async def info(self, key: str) -> object:
                await client.delete_ledger(deleted.id)
                return await stage.store.info(key)

        assert (await stage.mover(Deleting()).move(planned)).archived == (kept.id,)  # type: ignore[arg-type]
        with pytest.raises(TallybookError, match=str(deleted.id)):
            await client.ledger_metadata(deleted.id)
        assert await read_all(stage.client, kept.id) == lines(40)
