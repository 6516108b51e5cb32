"""Verification of objects that hang: each costs one deadline, and a pass ends before it costs hours."""

from __future__ import annotations

from tallybook.archive.objects.memory import MemoryObjectStore
from tallybook.archive.objects.probe import MAX_TIMEOUTS
from tallybook.client.client import Client
from tallybook.core.errors import ArchiveDenied, ArchiveUnavailable, TallybookError
from tallybook.metadata.ledger.model import LedgerMetadata
from tallybook.offload.verify import Verdict, verify_objects
from tallybook.runtime.clock import Clock
from tallybook.runtime.tasks import InlineWorkers

from ..simulated import scenario
from ..support.archive_stage import ArchiveStage
from ..support.memory_cluster import MemoryCluster
from .parts import closed_id as closed
from .test_offload_manifest import SETTINGS


class Hanging(MemoryObjectStore):
    """A store in which reads of objects in ``hang`` hang, and are counted."""

    def __init__(self, clock: Clock, error: type[TallybookError]) -> None:
        super().__init__(clock)
        self.error = error
        self.hang: set[str] = set()
        self.asked = 0
        self.asked_for: set[str] = set()

    async def read(self, key: str, offset: int, size: int) -> bytes:
        if key in self.hang:
            self.asked += 1
            self.asked_for.add(key)
            raise self.error(f"memory: read of {key} failed")
        return await super().read(key, offset, size)


async def verdicts(
    cluster: MemoryCluster, client: Client, store: Hanging, hanging: list[bool]
) -> tuple[list[Verdict], list[int]]:
    """Verdicts of so many objects, some of which hang, in ledger order; and the store."""
    async with ArchiveStage(cluster, SETTINGS, store=store) as stage:
        ledgers: list[LedgerMetadata] = []
        for hangs in hanging:
            ledger_id = await closed(client, 9)
            await stage.archive(ledger_id)
            ledgers.append(await client.ledger_metadata(ledger_id))
            archived = ledgers[-1].archived
            if hangs and archived is not None:
                store.hang.add(archived.key)
        found = [each async for each in verify_objects(store, InlineWorkers(), ledgers, client.ledger_metadata)]
        return sorted(found, key=lambda each: each.ledger_ids), [each.ledger_id for each in ledgers]


@scenario()
async def test_an_object_that_hangs_is_asked_for_once_and_the_others_are_checked(
    cluster: MemoryCluster, client: Client
) -> None:
    store = Hanging(cluster.world.clock, ArchiveUnavailable)
    found, ledgers = await verdicts(cluster, client, store, [False, True, False])
    assert [each.good for each in found] == [True, False, True]
    assert (found[1].checked, found[1].ledger_ids, store.asked) == (False, (ledgers[1],), 1)


@scenario()
async def test_a_pass_stops_reading_after_so_many_timeouts_in_a_row(cluster: MemoryCluster, client: Client) -> None:
    store = Hanging(cluster.world.clock, ArchiveUnavailable)
    hanging = [True, False] + 4 * MAX_TIMEOUTS * [True]
    found, _ = await verdicts(cluster, client, store, hanging)
    assert not any(each.good or each.checked for each in found if each is not found[1])
    assert MAX_TIMEOUTS <= store.asked <= 4 * MAX_TIMEOUTS
    assert sum("in a row" in each.problem for each in found) >= MAX_TIMEOUTS


@scenario()
async def test_many_hanging_objects_keep_none_of_the_others_from_being_checked(
    cluster: MemoryCluster, client: Client
) -> None:
    store, count = Hanging(cluster.world.clock, ArchiveUnavailable), 2 * MAX_TIMEOUTS
    found, _ = await verdicts(cluster, client, store, count * [True] + count * [False])
    assert [each.good for each in found] == count * [False] + count * [True]


@scenario()
async def test_objects_that_the_store_refuses_at_once_end_no_pass(cluster: MemoryCluster, client: Client) -> None:
    store, count = Hanging(cluster.world.clock, ArchiveDenied), 2 * MAX_TIMEOUTS
    found, _ = await verdicts(cluster, client, store, count * [True] + [False])
    assert [each.good for each in found] == count * [False] + [True]
