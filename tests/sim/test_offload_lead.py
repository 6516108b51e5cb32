"""Reports of an offloader about waiting work: after the term of another one, and in passes that do not end."""

import asyncio
from contextlib import suppress

import pytest

from tallybook.client.background import client_tasks
from tallybook.client.client import Client
from tallybook.core.errors import ArchiveUnavailable
from tallybook.offload.service import OffloadService

from ..simulated import scenario
from ..support.archive_stage import ArchiveStage
from ..support.memory_cluster import MemoryCluster
from .parts import closed_ledger as closed
from .test_offloader import EAGER
from .test_offloader_memory import opened

PATIENT = EAGER.model_copy(update={"max_set_wait_s": 1_000_000, "min_age_s": 0})
AWAY_SECONDS = 500


@scenario()
async def test_a_ledger_closed_between_two_terms_counts_as_waiting_since_then(
    cluster: MemoryCluster, client: Client
) -> None:
    tasks, clock = client_tasks("offloader"), cluster.world.clock
    async with ArchiveStage(cluster, PATIENT) as stage:
        place = opened(stage, tasks)
        worker = place.offloader(stage.client, PATIENT)
        service = OffloadService(place, worker, PATIENT)

        async def term() -> None:
            leading = asyncio.create_task(service._passes())
            await clock.sleep(PATIENT.interval_s + 1)
            leading.cancel()
            with suppress(asyncio.CancelledError):
                await leading

        await term()
        assert worker.backlog.waiting_ledgers == 0
        await closed(client, 9)
        await clock.sleep(AWAY_SECONDS)
        await term()
        assert worker.backlog.waiting_ledgers == 1
        assert worker.backlog.oldest_waiting_s >= AWAY_SECONDS
    await tasks.close()


@scenario()
async def test_waiting_ledgers_are_reported_in_passes_that_end_early_as_well(
    cluster: MemoryCluster, client: Client
) -> None:
    tasks, clock = client_tasks("offloader"), cluster.world.clock

    async def bucket_is_away() -> None:
        raise ArchiveUnavailable("nobody answers")

    async with ArchiveStage(cluster, PATIENT) as stage:
        worker = opened(stage, tasks).offloader(stage.client, PATIENT)
        await worker.run_pass()
        await closed(client, 9)
        worker._ready = bucket_is_away
        for waited in (0, 100, 200):
            with pytest.raises(ArchiveUnavailable):
                await worker.run_pass()
            assert worker.backlog.waiting_ledgers == 1
            assert worker.backlog.oldest_waiting_s == waited
            await clock.sleep(100)
    await tasks.close()
