"""An archive whose objects were moved: recorded once they are seen at the new place, and not while offloaders write."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tallybook.archive.location import read_location
from tallybook.archive.objects.memory import MemoryStore
from tallybook.client.client import Client
from tallybook.core.config import OffloadSettings
from tallybook.core.errors import ArchiveDenied, Conflict, InvalidConfig
from tallybook.metadata.leader import Leadership
from tallybook.offload.process import opened
from tallybook.offload.relocate import Relocation, relocate_archive, relocate_to
from tallybook.offload.service import LEADER_RECORD
from tallybook.runtime.rng import SeededRng
from tallybook.sim.stage.archive import ArchiveStage
from tallybook.sim.stage.cluster import MemoryCluster
from tallybook.sim.stage.scenario import lines, scenario


@scenario()
async def test_an_archive_is_relocated_only_if_every_object_is_at_the_new_place_unless_told_otherwise(
    cluster: MemoryCluster, client: Client
) -> None:
    world, metadata = cluster.world, cluster.metadata.client().store
    async with ArchiveStage(cluster) as stage:
        for count in (3, 4):
            ledger = await client.create_ledger()
            await ledger.append_many(lines(count))
            await ledger.close()
            await stage.archive(ledger.id)
        keys = [found.key async for page in stage.store.list() for found in page]
        there = MemoryStore(world.clock, name="there")

        async def relocated(**options: Any) -> Relocation:
            return await relocate_to(metadata, there, "memory:there", world.clock, SeededRng(1), **options)

        async def copy(key: str) -> None:
            await there.put(key, await stage.store.read(key, 0, (await stage.store.info(key)).size_bytes))

        await copy(keys[0])
        await there.put(keys[1], b"short")
        assert await relocated() == Relocation(2, (keys[1],), relocated=False)
        assert await read_location(metadata) is None
        assert await relocated(accept_missing=True) == Relocation(2, (keys[1],), relocated=True)
        assert await read_location(metadata) == "memory:there"
        await copy(keys[1])
        assert await relocated() == Relocation(2, (), relocated=True)


@scenario()
async def test_an_archive_is_not_relocated_while_an_offloader_leads(cluster: MemoryCluster, client: Client) -> None:
    world, metadata = cluster.world, cluster.metadata.client().store
    there = MemoryStore(world.clock)

    async def work() -> None:
        with pytest.raises(Conflict, match="stop it"):
            await relocate_to(metadata, there, "memory:", world.clock, SeededRng(1))

    lease_s = OffloadSettings().lease_s
    await Leadership(metadata, world.clock, SeededRng(2), record=LEADER_RECORD, lease_s=lease_s).lead(work)
    assert (await relocate_to(metadata, there, "memory:", world.clock, SeededRng(1))).relocated


async def test_an_offloader_of_the_old_place_ends_before_its_next_round(
    tmp_path: Path, new_cluster: Callable[..., str]
) -> None:
    old, new, metadata = tmp_path / "old", tmp_path / "new", new_cluster()
    old.mkdir()
    async with Client(metadata) as client, opened(client, f"file://{old}", settle=True) as archive:
        offloader = archive.offloader(client, OffloadSettings())
        await offloader.round()
        shutil.move(old, new)
        with pytest.raises(ArchiveDenied, match="offload relocate"):
            async with opened(client, None):
                pass
        with pytest.raises(InvalidConfig, match="offload relocate"):
            async with opened(client, f"file://{new}", settle=True):
                pass
        assert (await relocate_archive(client, f"file://{new}")).relocated
        with pytest.raises(InvalidConfig, match=f"is file://{new}, not file://{old}"):
            await offloader.round()
    async with Client(metadata) as client, opened(client, None, settle=True) as archive:
        assert archive.store.url == f"file://{new}"
