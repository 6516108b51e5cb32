"""Recoveries that replace bookies, race with each other and with the writer: one end, with all acked entries."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from tallybook.client.client import Client
from tallybook.client.writer.handle import LedgerWriter
from tallybook.core.errors import LedgerClosed, LedgerFenced
from tallybook.metadata.ledger.model import Fragment

from ..simulated import scenario
from ..support.ledger_scenario import SMALL, eventually, lines, read_all
from ..support.memory_cluster import MemoryCluster
from ..support.metadata_faults import Gated
from .parts import written_ledger

QUICK = SMALL.model_copy(update={"away_timeout_ms": 300, "reconnect_ms": 50, "metadata_timeout_ms": 1000})


def members(ledger: LedgerWriter) -> tuple[str, ...]:
    return ledger.metadata.last_fragment.bookies


@scenario(bookies=5)
async def test_c25_a_bookie_that_dies_during_the_write_back_is_replaced_by_the_close(
    cluster: MemoryCluster, client: Client
) -> None:
    ledger = await client.create_ledger()
    names = members(ledger)
    await ledger.append_many(lines(20))
    ledger.abandon()
    dying = cluster.bookies[names[0]]

    async def dies(method: str, ledger_id: int) -> None:
        if method == "recovery_add":
            cluster.die(dying.bookie_id)

    dying.gate = dies
    async with cluster.client(QUICK) as recoverer:
        metadata = await recoverer.recover_ledger(ledger.id)
    assert metadata.last_entry_id == 19
    assert dying.bookie_id not in metadata.last_fragment.bookies
    assert metadata.missed == ()
    assert cluster.under_replicated(metadata, copies=3) == []
    assert await read_all(client, ledger.id) == lines(20)


@scenario(bookies=4)
async def test_c27_another_recovery_ends_what_one_left_before_its_close(cluster: MemoryCluster, client: Client) -> None:
    ledger = await written_ledger(client, 20)
    ledger.abandon()
    slow = Gated()
    slow.hold(after=1)
    async with cluster.client(QUICK, seen_through=slow) as first:
        opened = asyncio.ensure_future(first.recover_ledger(ledger.id))
        await eventually(lambda: slow.waiting > 0, cluster)
        opened.cancel()
        await asyncio.gather(opened, return_exceptions=True)
    assert (await client.recover_ledger(ledger.id)).last_entry_id == 19
    assert await read_all(client, ledger.id) == lines(20)


@scenario(bookies=4)
async def test_c28_a_recovery_whose_last_fragment_changes_starts_over(cluster: MemoryCluster, client: Client) -> None:
    ledger = await written_ledger(client, 10)
    ledger.abandon()
    old = members(ledger)
    spare = next(name for name in cluster.bookies if name not in old)
    slow = Gated()
    slow.hold(after=1)
    async with cluster.client(QUICK, seen_through=slow) as recoverer:
        opened = asyncio.ensure_future(recoverer.recover_ledger(ledger.id))
        await eventually(lambda: slow.waiting > 0, cluster)
        cluster.copy_ledger(ledger.id, old[0], spare)
        moved = Fragment(0, (spare, *old[1:]))
        await cluster.edit(ledger.id, lambda m: replace(m, fragments=(moved,)))
        slow.release()
        closed = await opened
    assert closed.fragments == (moved,)
    assert closed.last_entry_id == 9
    assert cluster.bookies[spare].durably_fenced(ledger.id), "the second run worked on the fragment as it is now"


@scenario(bookies=4)
async def test_c30_concurrent_recoveries_agree_and_the_old_writer_is_fenced(
    cluster: MemoryCluster, client: Client
) -> None:
    ledger = await written_ledger(client, 10)
    clients = [cluster.client(QUICK) for _ in range(3)]
    try:
        ends = await asyncio.gather(*(each.recover_ledger(ledger.id) for each in clients))
    finally:
        for each in clients:
            await each.close()
    assert {(end.last_entry_id, end.length) for end in ends} == {(9, ends[0].length)}
    with pytest.raises((LedgerFenced, LedgerClosed)):
        await ledger.append(b"late")
    assert await ledger.close() == ends[0], "the recoveries ended it where the writer would have"
