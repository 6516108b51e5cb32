"""A loss together with an older copy of the metadata: limbo covers all ledgers ever known, then or later."""

from collections.abc import AsyncGenerator

import pytest

from tallybook.bookie.directories.layout import replace_identity
from tallybook.bookie.directories.limbo import Limbo, load_limbo
from tallybook.bookie.recovery.limbo_marker import FINAL_SECONDS
from tallybook.bookie.storage.entry_log.format import TableRow
from tallybook.bookie.storage.entry_log.logs import EntryLogs
from tallybook.bookie.storage.location import Location
from tallybook.core.errors import EntryUnknown, LedgerFenced, MetadataUnavailable
from tallybook.metadata.records.restored_store import RestoreRecord, ids_below
from tallybook.runtime.rng import SeededRng
from tallybook.sim.deterministic import NO_LATENCY, SimDisk, World
from tallybook.sim.stage.disk_bookie import ROOT, DiskBookie, KnownMetadata, batch_of

from ..simulated import on_stage, simulated, world_alone
from ..support.damage import said_of, zero_block
from .loss_parts import accept, empty

BELOW = 50
FENCED = 40
OLDER = 10


class Notes:
    """The record in which bookies note that the metadata were an older copy."""

    def __init__(self, metadata: KnownMetadata) -> None:
        self._metadata = metadata
        self.found: RestoreRecord | None = None

    async def read(self) -> RestoreRecord | None:
        return self.found

    async def report(self, bookie_id: str, id_counter: int, highest_id: int) -> RestoreRecord:
        self.found = RestoreRecord(id_counter, highest_id, bookie_id, 1)
        self._metadata.id_counter = max(self._metadata.id_counter, highest_id + 1)
        return self.found

    async def approve(self) -> bool:
        return False

    async def ids_below(self) -> int:
        return await ids_below(self._metadata.read_id_counter, self.read)


async def fenced(world: World) -> tuple[DiskBookie, Notes]:
    """A stopped bookie that has seen all ids, and has fenced a ledger of which it holds nothing."""
    metadata = KnownMetadata(id_counter=BELOW)
    node = DiskBookie(SimDisk(world.rng, latency=NO_LATENCY), world.clock, metadata)
    node.behind = notes = Notes(metadata)
    await node.boot()
    await node.bookie.compare_store()
    assert (await node.add(batch_of(0))).code == 0
    await node.bookie.fence(FENCED, b"")
    assert (await node.add(batch_of(0, ledger_id=FENCED))).code == LedgerFenced.wire_code
    await node.stop()
    return node, notes


async def check_doubted(node: DiskBookie, ledger_id: int) -> None:
    """See that the bookie knows that it may have lost what it held of a ledger, its fence included."""
    assert await said_of(node, ledger_id, 0) == "EntryUnknown"
    assert (await node.add(batch_of(0, ledger_id=ledger_id))).code == EntryUnknown.wire_code, "it was fenced"


async def marker(node: DiskBookie) -> Limbo:
    return await load_limbo(node.disk, f"{ROOT}/limbo")


@pytest.mark.parametrize("what", ["the index", "records of the journal", "the journal"])
@simulated
async def test_a_fence_that_was_lost_beside_an_older_copy_of_the_metadata_is_not_forgotten(
    world: World, *, what: str
) -> None:
    node, _ = await fenced(world)
    if what == "records of the journal":
        await damage_journal(node, world)
    else:
        await empty(node.disk, f"{ROOT}/{what.removeprefix('the ')}")
    node.metadata.id_counter = OLDER
    if what == "the journal":
        await accept(node)
    await node.boot()
    assert (await marker(node)).below == BELOW
    await node.stop()
    node.metadata.id_counter = BELOW  # an operator has brought back the right copy
    await node.boot()
    assert await said_of(node, FENCED, 0) == "EntryUnknown"
    code = (await node.add(batch_of(0, ledger_id=FENCED))).code
    assert code == (EntryUnknown if what == "the index" else LedgerFenced).wire_code
    await node.stop()


async def damage_journal(node: DiskBookie, world: World) -> None:
    """Zero the header of a block of the journal with records, behind which there are others."""
    await node.boot()
    for entry_id in range(1, 8):
        assert (await node.add(batch_of(entry_id))).code == 0
        await world.clock.sleep(0.1)
    await node.kill()
    await zero_block(node.disk)


@simulated
async def test_a_directory_that_takes_the_place_of_another_one_doubts_all_that_any_bookie_knew_of(world: World) -> None:
    node, notes = await fenced(world)
    node.metadata.id_counter, notes.found = OLDER, RestoreRecord(OLDER, BELOW - 1, "b2", 1)
    node.disk = SimDisk(world.rng, latency=NO_LATENCY)
    settings = node.settings.model_copy(update={"bookie_id": next(iter(node.metadata.cookies))})
    await replace_identity(settings, node.disk, node.metadata, SeededRng(3), notes.ids_below)
    assert (await marker(node)).below == BELOW
    await node.boot()
    await check_doubted(node, FENCED)
    await node.stop()


@pytest.mark.parametrize("restarts", [False, True])
@simulated
async def test_ids_that_come_to_light_after_the_loss_are_doubted_too_also_of_ledgers_in_memory(
    world: World, *, restarts: bool
) -> None:
    node, notes = await fenced(world)
    await empty(node.disk, f"{ROOT}/index")
    node.metadata.id_counter = OLDER
    await node.boot()
    beyond = BELOW + 5
    assert await said_of(node, beyond, 0) == "EntryAbsent"
    async with node.bookie.identified(beyond, b""):
        await notes.report("b2", OLDER, beyond)
        await node.bookie.compare_store()
        await check_doubted(node, beyond)
    assert await said_of(node, beyond + 1, 0) == "EntryAbsent"
    if restarts:
        await node.stop()
        await node.boot()
        await check_doubted(node, beyond)
    await node.stop()


@on_stage(world_alone, deadline_seconds=2 * FINAL_SECONDS)
async def test_a_loss_of_long_ago_puts_no_ledger_of_later_in_limbo_when_the_metadata_go_back(world: World) -> None:
    node, notes = await fenced(world)
    await empty(node.disk, f"{ROOT}/index")
    await node.boot()
    await world.clock.sleep(FINAL_SECONDS)
    await node.bookie.compare_store()
    await node.stop()
    await node.boot()
    later = BELOW + 5
    await notes.report("b2", BELOW + 1, later)
    await node.bookie.compare_store()
    assert await said_of(node, later, 0) == "EntryAbsent"
    assert (await marker(node)).below == BELOW
    await node.stop()


@simulated
async def test_metadata_that_go_away_while_the_logs_are_read_do_not_waste_that_work(
    world: World, *, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, _ = await fenced(world)
    await empty(node.disk, f"{ROOT}/index")
    scan, scanned = EntryLogs.scan, []

    def noting(logs: EntryLogs, log_id: int) -> AsyncGenerator[tuple[TableRow, Location], None]:
        scanned.append(log_id)
        return scan(logs, log_id)

    async def counter() -> int:
        if scanned:
            raise MetadataUnavailable("the metadata do not answer any more")
        return BELOW

    monkeypatch.setattr(EntryLogs, "scan", noting)
    node.metadata.read_id_counter = counter  # type: ignore[method-assign]
    await node.boot()
    assert scanned
    assert await said_of(node, 1, 0) == "held"
    assert (await marker(node)).below == BELOW
    await node.stop()
