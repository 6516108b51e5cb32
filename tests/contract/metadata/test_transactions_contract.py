"""Transactions of ledgers over every metadata driver: many ledgers, and races between a late commit and a cleanup."""

import asyncio
from collections import Counter
from dataclasses import dataclass, replace

import pytest

from tallybook.core.errors import Conflict, NoSuchLedger
from tallybook.core.quorum import Quorum
from tallybook.metadata.ledger.model import Fragment, LedgerMetadata, LedgerState
from tallybook.metadata.ledger_update import LedgerUpdater
from tallybook.metadata.transactions import (
    SinkRecord,
    Transaction,
    abandon,
    commit,
    delete_abandoned,
    forget,
    last_committed,
    read_view,
    record_attempt,
)
from tallybook.metadata.transactions.sink_record import MAX_LEDGERS_BYTES
from tallybook.runtime.clock import RealClock
from tallybook.runtime.rng import SeededRng

from ...support.fault_script import FaultScript
from ...support.faulty_metadata import FaultyMetadataStore

TTL_S = 100
OLD_MS = TTL_S * 1000
"""Now, in milliseconds, when what was created at 0 is old enough."""


@dataclass
class MetadataClientOf:
    """A client of which only the store matters."""

    store: FaultyMetadataStore


class Party:
    """One client of a store: a driver of Spark, or an offloader."""

    def __init__(self, client):
        self.store = client.store
        self.updater = LedgerUpdater(self.store, RealClock(), SeededRng(2))

    async def write(self, transaction, count, created_at_ms=0):
        """The ledgers that the tasks of an attempt leave."""

        async def one(_):
            ledger_id = await self.store.next_ledger_id()
            metadata = LedgerMetadata(
                ledger_id, Quorum(1, 1, 1), (Fragment(0, ("b1",)),), "creator", created_at_ms,
                custom=transaction.marks, state=LedgerState.CLOSED, last_entry_id=9, length=90,
            )  # fmt: skip
            await self.store.create_ledger(metadata)
            await record_attempt(self.updater, transaction, ledger_id)
            return ledger_id

        return sorted(await asyncio.gather(*map(one, range(count))))

    async def commit(self, transaction, ledger_ids):
        return await commit(self.updater, transaction, ledger_ids)

    async def tidy(self, now_ms=OLD_MS):
        found, damaged = (await self.ledgers()).values(), []
        deleted = await delete_abandoned(self.updater, found, ttl_s=TTL_S, now_ms=now_ms, on_damaged=damaged.append)
        assert not damaged
        return deleted

    async def ledgers(self):
        page = await self.store.list_ledgers(limit=10_000)
        found = {}
        for ledger_id in page.ledger_ids:
            try:
                found[ledger_id] = (await self.store.read_ledger(ledger_id, linearizable=True)).value
            except NoSuchLedger:
                continue
        return found

    async def visible(self):
        view = await read_view(self.store)
        return sorted(each for each, metadata in (await self.ledgers()).items() if view.sees(metadata))

    async def records(self):
        return sorted((await self.store.list_records()).names)


async def test_a_batch_that_is_never_repeated_leaves_no_record(world):
    async with world() as store:
        writer, reader = Party(await store.client()), Party(await store.client())
        for name in ("one", "two"):
            stray = await writer.write(Transaction.once(name), 1)
            ledgers = await writer.write(Transaction.once(name), 3)
            before = await reader.visible()
            assert await writer.commit(Transaction.once(name), ledgers)
            assert await reader.visible() == before + ledgers
            await forget(writer.updater, Transaction.once(name).sink)
            assert await reader.visible() == before + ledgers
            assert not set(stray) & set(await reader.ledgers())
        assert await reader.records() == ["sink-clock"]
        assert await writer.tidy() == 0
        assert len(await reader.visible()) == 6


async def test_a_batch_that_is_given_up_leaves_nothing(world):
    async with world() as store:
        writer = Party(await store.client())
        transaction = Transaction.once("one")
        failed, written = await writer.write(transaction, 1), await writer.write(transaction, 2)
        await writer.updater.delete(failed[0])
        await abandon(writer.updater, transaction, written)
        assert (await writer.ledgers(), await writer.records()) == ({}, [])


@pytest.mark.parametrize(
    "transaction", [Transaction("sales", 7, "query"), Transaction.once("one")], ids=["named", "once"]
)
async def test_an_uncommitted_transaction_is_deleted_once_its_youngest_ledger_is_old(world, transaction):
    async with world() as store:
        writer, offloader = Party(await store.client()), Party(await store.client())
        dead = await writer.write(transaction, 2)
        young = await writer.write(replace(transaction, sink=transaction.sink + "2"), 1, created_at_ms=1)
        assert await offloader.tidy(OLD_MS - 1) == 0
        assert await offloader.tidy() == 2
        assert sorted(await offloader.ledgers()) == young
        with pytest.raises(Conflict, match="were given up"):
            await writer.commit(transaction, dead)
        # The same transaction, run again.
        again = await writer.write(transaction, 2, created_at_ms=OLD_MS)
        assert await writer.commit(transaction, again)
        assert await writer.visible() == again
        assert await offloader.tidy() == 0
        assert len((await writer.store.list_records("sink-attempts")).names) == 1, "that of the young one"
        stored = await writer.store.read_record("sinks/sales")
        assert stored is None or SinkRecord.decode("sales", stored.value).given_up == ()


class Pausing(FaultyMetadataStore):
    """A store whose client pauses before its so-and-so-many-th call, and later ones, while ``meanwhile`` happens."""

    def __init__(self, store, at, meanwhile):
        super().__init__(store, FaultScript([]), RealClock())
        self.left, self.meanwhile, self.paused = at, meanwhile, False
        self.over = asyncio.Event()

    async def _begin(self, operation):
        self.left -= 1
        if self.left < 0 and not self.paused:
            self.paused = True
            await self.meanwhile()
            self.over.set()
        elif self.paused:
            await self.over.wait()
        return await super()._begin(operation)


async def race(clients, sink, tidy_at, commit_at):
    """Tidying pauses; a commit begins, and pauses; tidying ends; the commit ends.

    Whether there were calls to pause before, and whether the ledgers were committed.
    """
    writer, reader = Party(clients[0]), Party(clients[1])
    stopped, goes_on, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def stop():
        stopped.set()
        await goes_on.wait()

    async def go_on():
        goes_on.set()
        await ended.wait()

    async def tidy():
        try:
            return await Party(MetadataClientOf(tidying)).tidy()
        finally:
            stopped.set()
            ended.set()

    tidying, committing = Pausing(clients[1].store, tidy_at, stop), Pausing(clients[2].store, commit_at, go_on)
    transaction = Transaction(sink, 0)
    ledgers = await writer.write(transaction, 2)
    task = asyncio.create_task(tidy())
    await stopped.wait()
    try:
        committed = await Party(MetadataClientOf(committing)).commit(transaction, ledgers)
    except Conflict:
        committed = False
    goes_on.set()
    assert await task == (0 if committed else 2), (tidy_at, commit_at)
    assert await reader.visible() == (ledgers if committed else []), (tidy_at, commit_at)
    assert sorted(await reader.ledgers()) == await reader.visible(), (tidy_at, commit_at)
    await writer.tidy()
    assert not [name for name in await reader.records() if name.startswith(("sinks/once", "sink-attempts"))]
    return tidying.paused, committing.paused, committed


@pytest.mark.parametrize("sink", ["sales", "once/one"])
async def test_either_a_late_commit_or_the_cleanup_wins_completely(world, sink):
    """One of them pauses before each of its calls in turn, and the other before each of its own meanwhile."""
    outcomes = Counter()
    tidy_at, tidy_goes_on = 0, True
    while tidy_goes_on:
        commit_at, commit_goes_on = 0, True
        while commit_goes_on:
            async with world() as store:
                clients = [await store.client() for _ in range(3)]
                tidy_goes_on, commit_goes_on, done = await race(clients, sink, tidy_at, commit_at)
                step = {"MemoryMetadataStore": 1, "SqliteStore": 6}.get(type(clients[0].store).__name__, 23)
                outcomes[done] += 1
                commit_at += step
        tidy_at += step
    assert tidy_at > 15
    assert outcomes[True], "none was committed"
    assert outcomes[False], "none was given up"


async def test_a_commit_of_five_thousand_ledgers_fits_a_record_and_does_not_wait_for_each(world, monkeypatch):
    async with world() as store:
        # A node of ZooKeeper and a row of SQLite take as long to make in a test as in life: there, fewer.
        driver = type((await store.client()).store).__name__
        count = 5_000 if driver == "MemoryMetadataStore" else 100
        writer = Party(await store.client())
        transaction = Transaction("sales", 0)
        ledgers = await writer.write(transaction, count)
        under_way = Counter()
        update = writer.store.update_ledger

        async def counted(*arguments):
            under_way["now"] += 1
            under_way["most"] = max(under_way["most"], under_way["now"])
            try:
                await asyncio.sleep(0)
                return await update(*arguments)
            finally:
                under_way["now"] -= 1

        monkeypatch.setattr(writer.store, "update_ledger", counted)
        assert await writer.commit(transaction, ledgers)
        assert 8 <= under_way["most"] <= 32
        record = await writer.store.read_record("sinks/sales", linearizable=True)
        assert len(record.value) <= MAX_LEDGERS_BYTES
        assert (await last_committed(writer.store, "sales")).ledger_ids == tuple(ledgers)
        assert (await writer.store.list_records("sink-attempts/")).names == ()


async def test_the_record_of_five_thousand_tasks_is_kept_by_every_driver(world):
    """Each task is a client of its own; between their ids lie those of others."""
    async with world() as store:
        client = await store.client()
        record = SinkRecord.decode("x", SinkRecord().encode())
        ids = tuple(range(10**12, 10**12 + 5_000 * 997, 997))
        record = replace(record, last=replace(record.last, number=3, ledger_ids=ids, owner="f" * 36))
        await client.store.write_record("sinks/sales", record.encode(), None)
        assert (await last_committed(client.store, "sales")).ledger_ids == ids
