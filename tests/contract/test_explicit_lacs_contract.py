"""Explicit LACs sent without waiting: applied in the end or reported lost, over each transport to every bookie."""

import asyncio

from tallybook.core.answers import LacAnswer
from tallybook.core.errors import Busy
from tallybook.core.ids import NO_ENTRY

from .conftest import KEY

KEYS = {1: KEY, 3: b"", 4: b""}


async def held(rig) -> None:
    """A batch of each ledger is there."""
    for ledger_id, key in KEYS.items():
        assert (await rig.add(rig.batch(0, 10, ledger_id=ledger_id), key)).code == 0


async def test_lacs_without_space_are_sent_again_or_replaced_by_newer_ones(rig, monkeypatch):
    await held(rig)
    right, refused = rig.bookie.write_lac, []

    async def write_lac(ledger_id: int, lac: int, key: bytes) -> None:
        if ledger_id != 4 and len(refused) < 4:
            refused.append(ledger_id)
            raise Busy("no room now", retry_after_ms=10)
        await right(ledger_id, lac, key)

    monkeypatch.setattr(rig.bookie, "write_lac", write_lac)
    waiting = [rig.background(rig.connection.wait_lac(each, NO_ENTRY, 60_000)) for each in KEYS]
    await rig.settle()
    for ledger_id, key in KEYS.items():
        rig.connection.queue_lac(ledger_id, 5, key)
    while len(refused) < 2:
        await rig.clock.sleep(0.001)
    rig.connection.queue_lac(3, 7, b"")
    assert await asyncio.gather(*waiting) == [LacAnswer(lac, fenced=False) for lac in (5, 7, 5)]


async def test_a_lac_that_a_connection_was_lost_with_is_said_to_be_lost_once(rig, monkeypatch):
    await held(rig)
    told, lost = asyncio.Event(), []

    async def write_lac(ledger_id: int, lac: int, key: bytes) -> None:
        told.set()
        await asyncio.Event().wait()

    with monkeypatch.context() as patch:
        patch.setattr(rig.bookie, "write_lac", write_lac)
        rig.connection.queue_lac(1, 5, KEY, on_lost=lambda: lost.append("under way"))
        await told.wait()
        await rig.cut()
        await rig.settle()
    rig.connection.queue_lac(3, 5, b"", on_lost=lambda: lost.append("after"))
    assert lost == ["under way"]
    await rig.settle()
    assert lost == ["under way", "after"]
