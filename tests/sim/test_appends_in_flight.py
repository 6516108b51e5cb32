"""Appends in flight during concurrent acks, ensemble changes and the end of the ledger.

Test names carry ids of docs/project/lessons.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallybook.client.client import Client
from tallybook.client.writer.actions import Confirmed
from tallybook.client.writer.handle import LedgerWriter
from tallybook.client.writer.machine import WriterMachine
from tallybook.client.writer.policy import WriterPolicy
from tallybook.core.add_kind import AddKind
from tallybook.core.batch import decode_header
from tallybook.core.errors import Conflict, LedgerClosed, LedgerFenced, NotEnoughBookies, TallybookError
from tallybook.core.quorum import Quorum
from tallybook.metadata.ledger.model import LedgerMetadata
from tallybook.metadata.store import MetadataStore, WriteResult
from tallybook.sim.memory_bookie.bookie import MemoryBookie
from tallybook.sim.stage.disk_bookie import batch_of

from ..sampling import sample
from ..simulated import scenario
from ..support.ledger_scenario import SMALL, eventually, lines, read_all
from ..support.memory_cluster import MemoryCluster
from .parts import hold_commits, release_commits

QUICK = SMALL.model_copy(update={"away_timeout_ms": 300, "reconnect_ms": 50, "metadata_timeout_ms": 1000})


quick = partial(scenario, client_settings=QUICK)


# -- C04: acks of all bookies at once ------------------------------------------------------------


@given(quorum=st.sampled_from((Quorum(2, 2, 1), Quorum(3, 3, 2), Quorum(3, 3, 3), Quorum(5, 3, 2, 2))), data=st.data())
def test_c04_however_the_acks_of_all_bookies_mix_the_queue_moves_as_far_as_they_allow_and_drains(
    quorum: Quorum, data: st.DataObject
) -> None:
    """Each batch is acked by its whole write set; every ack advances the confirmed head as a simple count predicts."""
    rules = WriterPolicy(add_timeout_s=10.0, away_timeout_s=4.0, lag_limit_bytes=10_000)
    machine = WriterMachine(1, quorum, [f"b{at}" for at in range(quorum.ensemble)], rules, now=0.0)
    for position in range(quorum.ensemble):
        machine.connected(position, 0.0)
    count = data.draw(st.integers(1, 8))
    for entry_id in range(count):
        machine.submit(entry_id, entry_id, 1, b"a batch", 0.0)
    acks = [(entry_id, position) for entry_id in range(count) for position in quorum.write_set(entry_id)]
    acked = [0] * count
    told = -1
    for entry_id, position in data.draw(st.permutations(acks)):
        actions = machine.acked(position, entry_id, machine.bookie_of(position))
        acked[entry_id] += 1
        complete = next((at for at in range(count) if acked[at] < quorum.ack_quorum), count) - 1
        confirmed = [action.last_entry_id for action in actions if isinstance(action, Confirmed)]
        assert confirmed == sorted(set(confirmed))
        assert all(entry_id > told for entry_id in confirmed), "no entry is confirmed twice"
        told = max([told, *confirmed])
        assert told == complete
    assert told == count - 1
    assert machine.unconfirmed_batches == 0
    assert machine.all_acked


@pytest.mark.parametrize("seed", [*sample(range(8))])
def test_c04_when_all_bookies_ack_everything_at_once_each_of_many_callers_gets_its_entry_id(seed: int) -> None:
    """Ready callbacks run in random order, so that no test depends on it."""

    async def scene(cluster: MemoryCluster, client: Client) -> None:
        ledger = await client.create_ledger()
        heard: list[int] = []

        async def append(line: bytes) -> None:
            heard.append(await ledger.append(line))

        hold_commits(cluster)
        callers = [asyncio.ensure_future(append(line)) for line in lines(60)]
        await cluster.world.clock.sleep(0.05)
        assert heard == []
        release_commits(cluster)
        await asyncio.gather(*callers)
        assert sorted(heard) == list(range(60))
        assert (await ledger.close()).last_entry_id == 59

    quick(seed=seed, shuffle=True)(scene)()


@pytest.mark.parametrize("seed", range(4))
def test_runs_that_are_appended_at_once_do_not_mix_and_each_caller_gets_the_ids_of_its_own(seed: int) -> None:
    async def scene(cluster: MemoryCluster, client: Client) -> None:
        ledger = await client.create_ledger()
        # Together they exceed the budget, each is less than a quarter of it; and there are single ones as well.
        sizes = range(6, 30, 2)
        runs = [[b"%d of %d " % (number, run) + bytes(500) for number in range(size)] for run, size in enumerate(sizes)]
        alone = [asyncio.ensure_future(ledger.append(line)) for line in lines(10)]
        ids = await asyncio.gather(*map(ledger.append_many, runs))
        assert list(map(len, ids)) == list(map(len, runs))
        await asyncio.gather(*alone)
        await ledger.close()
        written = await read_all(client, ledger.id)
        assert [[written[entry_id] for entry_id in own] for own in ids] == runs

    quick(seed=seed, shuffle=True)(scene)()


@quick()
async def test_a_run_above_the_whole_budget_goes_in_by_pieces(cluster: MemoryCluster, client: Client) -> None:
    ledger = await client.create_ledger()
    run = [b"%d " % number + bytes(500) for number in range(400)]
    run[7] = bytes(client.max_pending_bytes // 2)
    most = 0

    async def watch() -> None:
        nonlocal most
        while ledger.last_add_confirmed < 399:
            most = max(most, client.pending_bytes)
            await cluster.world.clock.sleep(0.0005)

    watching = asyncio.ensure_future(watch())
    assert await ledger.append_many(run) == range(400)
    await watching
    assert most <= 1.1 * client.max_pending_bytes < sum(map(len, run))
    assert await ledger.append_many([]) == range(400, 400)


# -- C05: every request goes to a member of its write set ----------------------------------------


class Witness:
    """Records all requests to bookies, and all values of the metadata."""

    def __init__(self, cluster: MemoryCluster) -> None:
        self.asked: list[tuple[str, str, int]] = []
        """Request, bookie, and the entry it is about; -1 where it is about the ledger."""
        self.values: list[LedgerMetadata] = []
        self._store: MetadataStore | None = None
        for bookie in cluster.bookies.values():
            self._look_at(bookie)

    def __call__(self, store: MetadataStore) -> MetadataStore:
        self._store = store
        return self  # type: ignore[return-value]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def create_ledger(self, metadata: LedgerMetadata) -> WriteResult:
        assert self._store is not None
        self.values.append(metadata)
        return await self._store.create_ledger(metadata)

    async def update_ledger(self, metadata: LedgerMetadata, expected_version: int) -> WriteResult:
        assert self._store is not None
        self.values.append(metadata)
        return await self._store.update_ledger(metadata, expected_version)

    def strangers(self) -> list[tuple[str, str, int]]:
        """Requests to bookies that no version of the metadata names for the entry."""
        return [asked for asked in self.asked if not any(self._named(value, *asked) for value in self.values)]

    def names(self) -> set[str]:
        return {request for request, _, _ in self.asked}

    def _named(self, value: LedgerMetadata, request: str, bookie_id: str, entry_id: int) -> bool:
        if entry_id < 0:
            return bookie_id in value.last_fragment.bookies
        return bookie_id in value.bookies_of(entry_id)

    def _look_at(self, bookie: MemoryBookie) -> None:
        add = bookie.add

        def add_seen(batch: bytes, key: bytes, on_answer: Any, **how: bool) -> None:
            self.asked.append(("add", bookie.bookie_id, decode_header(batch).first_entry_id))
            add(batch, key, on_answer, **how)

        bookie.add = add_seen  # type: ignore[method-assign]
        for name in ("read_batches", "read_entry", "recovery_read"):
            setattr(bookie, name, self._seen(bookie, name, about_an_entry=True))
        for name in ("fence", "read_lac", "wait_lac"):
            setattr(bookie, name, self._seen(bookie, name, about_an_entry=False))

    def _seen(self, bookie: MemoryBookie, name: str, *, about_an_entry: bool) -> Callable[..., Any]:
        ask = getattr(bookie, name)

        async def seen(ledger_id: int, number: Any = -1, *more: Any, **how: Any) -> Any:
            self.asked.append((name, bookie.bookie_id, number if about_an_entry else -1))
            return await ask(ledger_id, number, *more, **how) if name != "read_lac" else await ask(ledger_id)

        return seen


@pytest.mark.parametrize("seed", range(4))
def test_c05_adds_reads_and_ensemble_changes_together_ask_members_of_the_write_set_only(seed: int) -> None:
    async def scene(cluster: MemoryCluster, client: Client) -> None:
        witness = Witness(cluster)
        writer, reader = cluster.client(QUICK, seen_through=witness), cluster.client(QUICK)
        ledger = await writer.create_ledger(ensemble=5, write_quorum=3, ack_quorum=2, stripe_entries=2)
        follower = await reader.open_ledger(ledger.id, recover=False)
        seen: list[bytes] = []

        async def follow() -> None:
            async for entry in follower.tail():
                seen.append(entry.payload)
                await follower.read_entry(entry.entry_id // 2)

        following = asyncio.ensure_future(follow())
        wanted: list[bytes] = []
        for moment in range(3):
            wanted += lines(40, start=40 * moment)
            pending = [ledger.append_nowait(line) for line in wanted[-40:]]
            await cluster.world.clock.sleep(0.003)
            dead = cluster.die(ledger.metadata.last_fragment.bookies[(seed + moment) % 5]).bookie_id
            await asyncio.gather(*pending)
            await eventually(lambda dead=dead: dead not in ledger.metadata.last_fragment.bookies, cluster)
            # Three deaths in a row may take all copies of what lies further back.
            await eventually(lambda upto=40 * (moment + 1): len(seen) == upto, cluster)
        ledger.abandon()
        async with cluster.client(QUICK, seen_through=witness) as recoverer:
            closed = await recoverer.recover_ledger(ledger.id)
        await following
        assert seen == wanted
        assert len(closed.fragments) == 4
        assert witness.names() >= {"add", "read_batches", "read_entry", "recovery_read", "fence", "wait_lac"}
        assert witness.strangers() == []
        await writer.close()
        await reader.close()

    quick(seed=seed, bookies=8)(scene)()


# -- C22: the ledger ends while appends are in flight --------------------------------------------

APPENDED = 200

End = Callable[[MemoryCluster, Client, LedgerWriter], Awaitable[object]]


async def _closed_by_its_writer(cluster: MemoryCluster, other: Client, ledger: LedgerWriter) -> object:
    return await ledger.close()


async def _recovered_by_another(cluster: MemoryCluster, other: Client, ledger: LedgerWriter) -> object:
    return await other.recover_ledger(ledger.id)


async def _abandoned(cluster: MemoryCluster, other: Client, ledger: LedgerWriter) -> object:
    return ledger.abandon()


async def _left_by_its_bookies(cluster: MemoryCluster, other: Client, ledger: LedgerWriter) -> object:
    return [cluster.die(name) for name in ledger.metadata.last_fragment.bookies[:2]]


async def _contradicted(cluster: MemoryCluster, other: Client, ledger: LedgerWriter) -> object:
    """Add other bytes to a bookie under an entry id that is not sent yet."""
    batch = batch_of(APPENDED - 1, ledger_id=ledger.id, lac=-1)
    cluster.bookies[ledger.metadata.last_fragment.bookies[1]].add(
        batch, b"", lambda answer: None, kind=AddKind.RECOVERY
    )
    return batch


ENDS: dict[str, tuple[End, tuple[type[TallybookError], ...]]] = {
    "closed by its writer": (_closed_by_its_writer, ()),
    "recovered by another": (_recovered_by_another, (LedgerFenced,)),
    "abandoned": (_abandoned, (LedgerClosed,)),
    "left by its bookies": (_left_by_its_bookies, (NotEnoughBookies,)),
    "contradicted": (_contradicted, (Conflict,)),
}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("end", ENDS)
def test_c22_a_ledger_that_ends_with_appends_in_flight_settles_each_and_counts_kept_entries(
    end: str, seed: int
) -> None:
    """Entries of different lengths, so that a wrong sum is detected."""
    ends, failures = ENDS[end]

    async def scene(cluster: MemoryCluster, client: Client) -> None:
        payloads = [b"%d:" % number + bytes(number % 60) for number in range(APPENDED)]
        writer = cluster.client(QUICK)
        ledger = await writer.create_ledger()
        pending = [ledger.append_nowait(payload) for payload in payloads]
        await cluster.world.clock.sleep(0.002 * (seed + 1))
        await ends(cluster, client, ledger)
        results = await asyncio.gather(*pending, return_exceptions=True)
        with pytest.raises((LedgerClosed, *failures)):
            await ledger.append(b"late")
        told = [number for number, result in enumerate(results) if result == number]
        assert {type(result) for result in results if isinstance(result, BaseException)} <= {*failures}
        assert len(told) + sum(isinstance(result, TallybookError) for result in results) == len(payloads)
        assert told == list(range(len(told))), "what callers were told has no gap"
        for bookie in cluster.bookies.values():
            if not bookie.alive:
                bookie.restart()
                await cluster.register(bookie.bookie_id)
        closed = await client.recover_ledger(ledger.id)
        kept = await read_all(client, ledger.id)
        assert kept == [*payloads, b"late"][: len(kept)], "a failed append may be kept, in its place"
        assert len(kept) >= len(told)
        assert closed.length == sum(map(len, kept))
        assert end != "closed by its writer" or len(told) == len(payloads)
        await writer.close()

    # The bookie with other bytes must be replaced.
    quick(seed=seed, bookies=4 if end == "contradicted" else 3)(scene)()
