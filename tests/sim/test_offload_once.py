"""The status record of a single offloader run, for ``tallybook offload status``."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import pytest

from tallybook.archive.objects.port import ObjectInfo
from tallybook.client.background import client_tasks
from tallybook.client.client import Client
from tallybook.core.errors import (
    ArchiveDenied,
    ArchiveUnavailable,
    InvalidConfig,
    InvariantViolation,
    MetadataUnavailable,
    TallybookError,
)
from tallybook.metadata.store import MetadataStore
from tallybook.offload.open_archive import Archive
from tallybook.offload.service import OffloadService, status_of
from tallybook.offload.status_record import STATUS_RECORD
from tallybook.runtime.clock import Clock

from ..simulated import scenario
from ..support.archive_stage import ArchiveStage
from ..support.memory_cluster import MemoryCluster
from .parts import closed_id as closed
from .parts import object_keys as objects
from .test_offload_manifest import SETTINGS
from .test_offload_verify import Hanging
from .test_offloader_memory import opened

ERRORS = (ArchiveDenied, ArchiveUnavailable, InvalidConfig, InvariantViolation)


class Bucket(Hanging):
    """A store that can fail listings, and refuses objects in ``hang``."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock, ArchiveDenied)
        self.fails: TallybookError | None = None

    async def list(self, prefix: str = "", after: str = "") -> AsyncIterator[Sequence[ObjectInfo]]:
        if self.fails is not None:
            raise self.fails
        async for page in super().list(prefix, after):
            yield page


class Unwritable:
    """A metadata store that refuses status records."""

    def __init__(self, store: MetadataStore, *, hangs: bool) -> None:
        self._store = store
        self._hangs = hangs

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def write_record(self, name: str, value: bytes, expected: int | None) -> object:
        if name == STATUS_RECORD:
            if self._hangs:
                await asyncio.Event().wait()
            raise MetadataUnavailable("no status is taken")
        return await self._store.write_record(name, value, expected)


async def work(place: Archive, client: Client) -> Mapping[str, object]:
    """Run it as a process."""
    return await OffloadService(place, place.offloader(client, SETTINGS), SETTINGS).work_off()


async def told(place: Archive) -> tuple[object, object, object]:
    """Failures, last failure and orphans of the status."""
    status = await status_of(place)
    return status["failures"], status["last_error"], status["orphans"]


@scenario(deadline_seconds=60_000)
async def test_a_refused_object_is_reported(cluster: MemoryCluster, client: Client) -> None:
    bucket, tasks = Bucket(cluster.world.clock), client_tasks("offloader")
    async with ArchiveStage(cluster, SETTINGS, store=bucket) as stage:
        place = opened(stage, tasks)
        ledgers = [await closed(client, 120) for _ in range(3)]
        await work(place, client)
        assert await told(place) == (0, "", 0)
        bucket.hang = {(await objects(stage))[1]}
        await client.delete_ledger(ledgers[0])
        await cluster.world.clock.sleep(SETTINGS.deletion_lag_s)
        assert (await work(place, client))["ledgers_released"] == 1
        failures, last_error, orphans = await told(place)
        assert (failures, orphans) == (1, 1)
        assert bucket.hang.pop() in str(last_error)
    await tasks.close()


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error.__name__)
@scenario(deadline_seconds=60_000)
async def test_a_run_that_ends_with_an_error_reports_it(
    cluster: MemoryCluster, client: Client, *, error: type[TallybookError]
) -> None:
    bucket, tasks = Bucket(cluster.world.clock), client_tasks("offloader")
    async with ArchiveStage(cluster, SETTINGS, store=bucket) as stage:
        place = opened(stage, tasks)
        await closed(client, 120)
        await work(place, client)
        bucket.fails = error("it is not listed")
        await cluster.world.clock.sleep(SETTINGS.deletion_lag_s)
        with pytest.raises(error, match="it is not listed"):
            await work(place, client)
        failures, last_error, _ = await told(place)
        assert failures == 1
        assert "it is not listed" in str(last_error)
    await tasks.close()


@pytest.mark.parametrize("hangs", [False, True], ids=["refuses", "hangs"])
@scenario(deadline_seconds=60_000)
async def test_where_that_cannot_be_written_down_the_error_is_still_the_first_one(
    cluster: MemoryCluster, client: Client, *, hangs: bool
) -> None:
    bucket, tasks = Bucket(cluster.world.clock), client_tasks("offloader")
    async with ArchiveStage(cluster, SETTINGS, store=bucket) as stage:
        place = opened(stage, tasks)
        bucket.fails = ArchiveUnavailable("it is not listed")
        metadata: Any = Unwritable(place.metadata, hangs=hangs)
        with pytest.raises(ArchiveUnavailable, match="it is not listed"):
            await work(dataclasses.replace(place, metadata=metadata), client)
    await tasks.close()
