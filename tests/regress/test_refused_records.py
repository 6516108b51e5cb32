"""A record that the journal refuses has no effect; one with an unknown outcome ends the process."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tallybook.core.errors import DiskFailed, EntryAbsent, InvariantViolation, LedgerFenced, NoSuchLedger
from tallybook.sim.deterministic import SimDisk, World
from tallybook.sim.stage.disk_bookie import DiskBookie, batch_of, tiny_settings

from ..simulated import Parts, on_stage


@asynccontextmanager
async def started_bookie(world: World) -> AsyncIterator[Parts]:
    node = DiskBookie(SimDisk(world.rng), world.clock, settings=tiny_settings())
    await node.boot()
    await world.clock.sleep(1)
    yield {"node": node}
    await node.kill()


on_a_bookie = on_stage(started_bookie)


def refuse_next(node: DiskBookie, monkeypatch: pytest.MonkeyPatch, error: Exception, part: str = "journal") -> None:
    """The next record, or the next batch for the cache, meets ``error``."""
    parts = node.parts
    owner = {"journal": parts.journals.each[0], "cache": parts.cache}[part]
    name = {"journal": "append", "cache": "put"}[part]
    whole = getattr(owner, name)

    def once(*arguments: object) -> None:
        monkeypatch.setattr(owner, name, whole)
        raise error

    monkeypatch.setattr(owner, name, once)


async def after_power_loss(node: DiskBookie) -> DiskBookie:
    await node.lose_power()
    await node.boot()
    return node


@pytest.mark.parametrize(
    ("ask", "then"),
    [(lambda bookie: bookie.fence(1, b""), LedgerFenced), (lambda bookie: bookie.delete_ledger(1), NoSuchLedger)],
    ids=["fence", "deletion"],
)
@on_a_bookie
async def test_what_the_journal_refused_is_not_answered_when_it_is_asked_for_again(node, *, monkeypatch, ask, then):
    assert (await node.add(batch_of(0))).code == 0
    refuse_next(node, monkeypatch, DiskFailed("planted"))
    with pytest.raises(DiskFailed):
        await ask(node.bookie)
    await ask(node.bookie)
    await after_power_loss(node)
    assert (await node.add(batch_of(1))).code == then.wire_code


@on_a_bookie
async def test_a_lac_that_the_journal_refused_is_not_returned(node, *, monkeypatch):
    assert (await node.add(batch_of(0))).code == 0
    refuse_next(node, monkeypatch, DiskFailed("planted"))
    with pytest.raises(DiskFailed):
        await node.bookie.write_lac(1, 7, b"")
    assert (await node.bookie.read_lac(1)).lac == -1
    await node.bookie.write_lac(1, 7, b"")
    await after_power_loss(node)
    assert (await node.bookie.read_lac(1)).lac == 7


@pytest.mark.parametrize("known", [True, False], ids=["at once", "on the slow way"])
@on_a_bookie
async def test_a_batch_that_the_journal_refused_is_journaled_when_it_is_sent_again(node, *, monkeypatch, known):
    first = 0
    if known:
        assert (await node.add(batch_of(0))).code == 0
        first = 1
    refuse_next(node, monkeypatch, DiskFailed("planted"))
    assert (await node.add(batch_of(first))).code == DiskFailed.wire_code
    with pytest.raises(EntryAbsent):
        await node.bookie.read_batches(1, first, first, 1)
    assert (await node.add(batch_of(first))).code == 0
    assert (await node.add(batch_of(first + 1))).code == 0
    await after_power_loss(node)
    for number in range(first + 2):
        assert (await node.bookie.read_batches(1, number, number, 1)).batches == (batch_of(number),)
    assert node.bookie.stats()["inflight_bytes"] == 0


@pytest.mark.parametrize("part", ["journal", "cache"])
@pytest.mark.parametrize("error", [MemoryError("planted"), InvariantViolation("planted")], ids=["memory", "invariant"])
@pytest.mark.parametrize("known", [True, False], ids=["at once", "on the slow way"])
@on_a_bookie
async def test_a_defect_while_a_batch_is_handed_over_ends_the_node_and_answers_every_caller_once(
    node, *, monkeypatch, known, error, part
):
    assert (await node.add(batch_of(0))).code == 0
    node.disk.fail("write", "journal/segment", error=None, delay_seconds=5)
    queued = node.add(batch_of(1))
    await asyncio.sleep(0.1)
    refuse_next(node, monkeypatch, error, part)
    struck = node.add(batch_of(2) if known else batch_of(0, ledger_id=2))
    later = node.add(batch_of(9))
    answers = [await answer for answer in (queued, struck, later)]
    assert all(answer.code for answer in answers), "nothing is acked after a defect"
    assert node.failures
    assert "planted" in node.failures[0]
    await asyncio.sleep(20)
    assert node.bookie.stats()["inflight_bytes"] == 0


@on_a_bookie
async def test_a_defect_while_a_fence_is_journaled_ends_the_node(node, *, monkeypatch):
    node.disk.fail("write", "journal/segment", error=None, delay_seconds=5)
    queued = node.add(batch_of(0))
    await asyncio.sleep(0.1)
    refuse_next(node, monkeypatch, MemoryError("planted"))
    with pytest.raises(MemoryError):
        await node.bookie.fence(2, b"")
    assert (await queued).code != 0
    assert node.failures


@on_a_bookie
async def test_a_lac_is_taken_from_the_reserve_that_is_kept_for_it_while_adds_are_refused(node):
    node.disk.fail("write", "entrylog", error=None, delay_seconds=600)  # no checkpoint ends, so the ring fills
    number, refused = 0, False
    while not refused:
        refused = (await node.add(batch_of(number))).code != 0
        number += 1
        assert number < 1_000
    await node.bookie.write_lac(1, 3_000, b"")
    assert (await node.bookie.fence(1, b"")).lac == 3_000
