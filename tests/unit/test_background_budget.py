"""The budget of background work, at the port of a bookie on a simulated disk."""

from tallybook.bookie.ledgers.confirmed_prefix import ConfirmedPrefix
from tallybook.core.add_kind import AddKind
from tallybook.core.limits import KIB
from tallybook.sim.stage.disk_bookie import DiskBookie, batch_of

from ..simulated import on_stage
from .bookie_parts import booted

LEDGER = 1
ENTRIES = 32
SIZE = 8 * KIB
RATE = 64 * KIB


def batch(entry_id: int) -> bytes:
    return batch_of(entry_id, ledger_id=LEDGER, payload=b"x" * SIZE)


async def fill(node: DiskBookie, kind: AddKind = AddKind.ORDINARY) -> None:
    for entry_id in range(ENTRIES):
        assert (await node.add(batch(entry_id), kind=kind)).code == 0
        await node.bookie.flush()


async def read(node: DiskBookie, *, background: bool) -> None:
    for entry_id in range(ENTRIES):
        found = await node.bookie.read_batches(LEDGER, entry_id, entry_id, 1, background=background)
        assert found.batches == (batch(entry_id),)


@on_stage(booted, background_bytes_per_second=RATE)
async def test_background_reads_keep_to_the_budget_and_others_do_not_wait(node, world):
    await fill(node)
    began = world.clock.monotonic()
    await read(node, background=True)
    behind = world.clock.monotonic()
    assert behind - began >= (ENTRIES - 1) * SIZE / RATE
    await read(node, background=False)
    assert world.clock.monotonic() - behind < 1.0
    assert node.bookie.stats()["background_bytes_reads"] >= ENTRIES * SIZE
    assert node.bookie.stats()["background_waited_seconds"] > 0


@on_stage(booted, background_bytes_per_second=RATE)
async def test_repair_adds_keep_to_the_same_budget(node, world):
    node.metadata.confirmed_prefixes[LEDGER] = ConfirmedPrefix(ENTRIES - 1, closed=True)
    began = world.clock.monotonic()
    await fill(node, AddKind.REPAIR)
    assert world.clock.monotonic() - began >= (ENTRIES - 1) * SIZE / RATE
    assert node.bookie.stats()["background_bytes_repair"] >= ENTRIES * SIZE
    await read(node, background=False)


@on_stage(booted)
async def test_without_a_limit_nothing_waits_while_the_foreground_is_idle(node, world):
    await fill(node)
    await world.clock.sleep(10.0)
    waited = node.bookie.stats()["background_waited_seconds"]
    await read(node, background=True)
    assert node.bookie.stats()["background_rate"] == 0
    assert node.bookie.stats()["background_waited_seconds"] == waited
