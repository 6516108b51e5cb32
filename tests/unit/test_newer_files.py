"""A bookie with files of a newer version: it reports this and does not start, and changes no byte."""

from contextlib import nullcontext

import pytest

from tallybook.bookie.directories import cookie, limbo
from tallybook.bookie.directories import layout as directories
from tallybook.bookie.directories import storage_directories as places
from tallybook.bookie.journal import format as journal_format
from tallybook.bookie.journal import superblock
from tallybook.bookie.ledgers import state as ledger_state
from tallybook.bookie.scrub import scrubber as scrub
from tallybook.bookie.storage.entry_log import format as entry_log_format
from tallybook.bookie.storage.entry_log import lengths as entry_log_lengths
from tallybook.bookie.storage.index import format as index_format
from tallybook.core import batch
from tallybook.core.errors import NewerFormat
from tallybook.sim.deterministic import SimDisk, World
from tallybook.sim.stage.disk_bookie import ROOT, DiskBookie, batch_of, tiny_settings

from ..simulated import simulated
from .loss_parts import accept, everything_in

LEDGER = 1
STORED, FLUSHED = 6, 4
"""Entries, and those of them that are in the entry logs: the others are in the journal alone."""
ELSEWHERE = "/disk2/ledgers"


def newer_record_kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches are written as records of a kind that is to come, which their maker can read."""
    to_come = journal_format.NEWEST_KIND + 1
    monkeypatch.setattr(journal_format, "KIND_BATCH", to_come)
    monkeypatch.setattr(journal_format, "NEWEST_KIND", to_come)
    monkeypatch.setitem(journal_format._BODY_BYTES, to_come, 0)


CONSTANTS = {
    "cookie": [(cookie, "VERSION")],
    "place": [(places, "DIRECTORY_VERSION")],
    "format file": [(directories, "FORMAT_VERSION"), (directories, "FORMAT_WITH_DIRECTORIES")],
    "limbo marker": [(limbo, "VERSION")],
    "superblock": [(superblock, "VERSION")],
    "segment and blocks": [(journal_format, "VERSION")],
    "journal record": newer_record_kinds,
    "batch": [(batch, "VERSION")],
    "entry log": [(entry_log_format, "VERSION")],
    "note of lengths": [(entry_log_lengths, "_VERSION")],
}
"""Formats whose version is higher in a newer release."""

NOT_LOOKED_AT = {"segment and blocks", "journal record", "batch", "entry log", "note of lengths"}
"""Not read when a loss is accepted: none of these is lost, as the command reports."""


def make_newer(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Act as a release with a later version of this format."""
    change = CONSTANTS[what]
    if callable(change):
        change(monkeypatch)
    else:
        for module, name in change:
            monkeypatch.setattr(module, name, getattr(module, name) + 1)


async def written_by_a_newer_one(world: World) -> DiskBookie:
    """A bookie that was killed with some of its entries in the journal only."""
    elsewhere = (f"{ROOT}/ledgers", ELSEWHERE)
    node = DiskBookie(SimDisk(world.rng), world.clock, settings=tiny_settings(ledger_directories=elsewhere))
    await node.boot()
    for entry_id in range(STORED):
        assert (await node.add(batch_of(entry_id, ledger_id=LEDGER))).code == 0
        if entry_id == FLUSHED - 1:
            await node.bookie.flush()
    await node.kill()
    return node


async def start_and_fence(node: DiskBookie) -> None:
    """Rows of an index are not read when a bookie starts, but by the first request for them."""
    await node.boot()
    await node.bookie.fence(LEDGER, b"")


async def everything_is_there(node: DiskBookie) -> None:
    for entry_id in range(STORED):
        answer = await node.bookie.read_batches(LEDGER, entry_id, entry_id, 1)
        assert len(answer.batches) == 1
    assert not (await node.bookie.read_lac(LEDGER)).fenced


@pytest.mark.parametrize("what", CONSTANTS)
@simulated
async def test_a_bookie_does_not_start_on_what_a_newer_one_has_written_and_changes_none_of_it(
    world: World, *, what, monkeypatch
) -> None:
    with monkeypatch.context() as newer:
        make_newer(what, newer)
        node = await written_by_a_newer_one(world)
    before = everything_in(node.disk)
    with pytest.raises(NewerFormat, match="a newer Tallybook wrote it, and is needed"):
        await node.boot()
    assert everything_in(node.disk) == before
    with nullcontext() if what in NOT_LOOKED_AT else pytest.raises(NewerFormat):
        assert await accept(node) == []
    assert everything_in(node.disk) == before, "nor is it given up as lost"
    with monkeypatch.context() as newer:
        make_newer(what, newer)
        await node.boot()
        await everything_is_there(node)
        await node.stop()


@simulated
async def test_an_index_of_a_newer_one_is_not_taken_for_a_lost_one(world: World) -> None:
    node = await written_by_a_newer_one(world)
    before, open_index = everything_in(node.disk), node._open_index

    async def of_a_newer_one(directory: str, *, create: bool) -> None:
        raise NewerFormat.of(f"{directory}/synced", 2, 1)

    node._open_index = of_a_newer_one
    with pytest.raises(NewerFormat, match=f"{ROOT}/index/synced"):
        await node.boot()
    assert everything_in(node.disk) == before, "no other one was made"
    node._open_index = open_index
    await node.boot()
    await everything_is_there(node)
    assert (await node.bookie.status()).limbo_events == 0
    await node.stop()


@pytest.mark.parametrize(
    ("module", "numbers"),
    [
        (index_format, {"VERSION": 2, "_HEAD": bytes([2, 0, 0, 0])}),
        (ledger_state, {"VERSION": ledger_state.NEWEST_VERSION + 1, "NEWEST_VERSION": ledger_state.NEWEST_VERSION + 1}),
    ],
    ids=["row of the index", "state of a ledger"],
)
@simulated
async def test_a_row_that_a_newer_one_has_written_is_neither_damaged_nor_in_limbo(
    world: World, *, module, numbers, monkeypatch
) -> None:
    with monkeypatch.context() as newer:
        for name, value in numbers.items():
            newer.setattr(module, name, value)
        node = await written_by_a_newer_one(world)
        await node.boot()
        await node.stop()
    with pytest.raises(NewerFormat):
        await start_and_fence(node)
    await node.kill()
    with monkeypatch.context() as newer:
        for name, value in numbers.items():
            newer.setattr(module, name, value)
        await node.boot()
        await everything_is_there(node)
        status = await node.bookie.status()
        assert (status.damaged_batches, status.limbo_events) == (0, 0)
        await node.stop()


@simulated
async def test_the_note_of_a_newer_scrub_is_left_as_it_is(world: World, *, monkeypatch) -> None:
    period_s = 3600
    node = DiskBookie(SimDisk(world.rng), world.clock, settings=tiny_settings(scrub_period_s=period_s))
    with monkeypatch.context() as newer:
        newer.setattr(scrub, "VERSION", scrub.VERSION + 1)
        await node.boot()
        for entry_id in range(STORED):
            assert (await node.add(batch_of(entry_id, ledger_id=LEDGER))).code == 0
            await node.bookie.flush()
        await world.clock.sleep(3 * period_s)
        await node.stop()
    note = node.disk.peek(f"{ROOT}/scrub")
    assert note.startswith(b"tallybook scrub 2")
    bookie = await node.boot()
    await world.clock.sleep(3 * period_s)
    assert (await bookie.status()).scrub_rounds > 1
    assert node.disk.peek(f"{ROOT}/scrub") == note
    await node.stop()
    assert node.failures == []
