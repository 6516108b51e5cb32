"""Writers and recoveries that replace bookies, through real clients: what was acked is where the metadata say."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest

from tallybook.client.client import Client
from tallybook.client.writer.handle import LedgerWriter
from tallybook.core.batch import decode_header
from tallybook.core.errors import (
    LedgerClosed,
    LedgerFenced,
    MetadataOutcomeUnknown,
    NotEnoughBookies,
    Outcome,
    TallybookError,
)
from tallybook.metadata.faulty import Fault, FaultyStore, Script
from tallybook.metadata.model import Fragment, LedgerMetadata, begin_recovery, close
from tallybook.metadata.store import LedgerWatch, MetadataStore, Ok, Unknown, WriteResult
from tallybook.sim.cluster import MemoryCluster
from tallybook.sim.memory_bookie import MemoryBookie
from tallybook.sim.scenario import SMALL, eventually, lines, read_all, scenario

QUICK = SMALL.model_copy(update={"away_timeout_ms": 300, "reconnect_ms": 50, "metadata_timeout_ms": 1000})


def members(ledger: LedgerWriter) -> tuple[str, ...]:
    return ledger.metadata.last_fragment.bookies


def held_by_those_named(cluster: MemoryCluster, metadata: LedgerMetadata, ack_quorum: int = 2) -> None:
    """Every entry is durable at an ack quorum of the bookies that its fragment names."""
    for entry_id in range(metadata.last_entry_id + 1):
        holders = [
            bookie_id
            for bookie_id in metadata.bookies_of(entry_id)
            if any(
                first <= entry_id <= decode_header(batch).last_entry_id
                for first, batch in cluster.bookies[bookie_id].durable_batches(metadata.ledger_id).items()
            )
        ]
        assert len(holders) >= ack_quorum, f"entry {entry_id} is held by {holders} of {metadata.bookies_of(entry_id)}"


@scenario(bookies=4)
async def test_c10_a_bookie_that_dies_is_replaced_and_the_next_fragment_starts_after_the_lac(
    cluster: MemoryCluster, client: Client
) -> None:
    async with cluster.client(QUICK) as writer:
        ledger = await writer.create_ledger()
        await ledger.append_many(lines(20))
        before = members(ledger)
        dead = cluster.die(before[1])
        pending = [ledger.append_nowait(line) for line in lines(40, start=20)]
        await eventually(lambda: len(ledger.metadata.fragments) == 2, cluster)
        assert [await append for append in pending] == list(range(20, 60))
        closed = await ledger.close()
    first, second = closed.fragments
    assert (first.first_entry_id, first.bookies) == (0, before)
    assert second.first_entry_id >= 20
    assert dead.bookie_id not in second.bookies
    held_by_those_named(cluster, closed)
    assert await read_all(client, ledger.id) == lines(60)


@scenario(bookies=4)
async def test_c09_a_bookie_that_dies_before_the_first_ack_leaves_one_fragment(
    cluster: MemoryCluster, client: Client
) -> None:
    async with cluster.client(QUICK) as writer:
        ledger = await writer.create_ledger()
        dead = cluster.die(members(ledger)[0])
        for name in members(ledger)[1:]:
            cluster.bookies[name].hold_commits()
        pending = ledger.append_nowait(b"first")
        await eventually(lambda: dead.bookie_id not in members(ledger), cluster)
        for bookie in cluster.bookies.values():
            bookie.release_commits()
        assert await pending == 0
        closed = await ledger.close()
    assert [fragment.first_entry_id for fragment in closed.fragments] == [0]
    assert closed.missed == ()


@scenario(bookies=4)
async def test_c02_what_is_acked_during_a_change_is_held_by_the_bookies_its_fragment_names(
    cluster: MemoryCluster, client: Client
) -> None:
    """The two that are left ack everything while the change is under way; callers hear of it only afterwards."""
    slow = Gated()
    async with cluster.client(QUICK, seen_through=slow) as writer:
        ledger = await writer.create_ledger()
        await ledger.append_many(lines(10))
        slow.hold()
        dead = cluster.die(members(ledger)[2])
        await ledger.append(b"it is missed")
        await eventually(lambda: slow.waiting > 0, cluster)
        lac = ledger.last_add_confirmed
        pending = [ledger.append_nowait(line) for line in lines(30, start=11)]
        await cluster.world.clock.sleep(0.5)
        assert ledger.last_add_confirmed == lac, "nothing may be confirmed while the change is written"
        slow.release()
        assert [await append for append in pending] == list(range(11, 41))
        closed = await ledger.close()
    assert closed.last_fragment.first_entry_id == lac + 1
    assert dead.bookie_id not in closed.last_fragment.bookies
    held_by_those_named(cluster, closed)


@pytest.mark.parametrize("fault", [Fault.UNKNOWN_APPLIED, Fault.UNKNOWN_LOST, Fault.UNKNOWN_LATE])
def test_c07_a_change_whose_answer_is_lost_is_read_back(fault: Fault) -> None:
    @scenario(bookies=4)
    async def play(cluster: MemoryCluster, client: Client) -> None:
        script = Script([("update_ledger", fault)])
        through: Callable[[MetadataStore], MetadataStore] = lambda store: FaultyStore(  # noqa: E731
            store, script, cluster.world.clock
        )
        async with cluster.client(QUICK, seen_through=through) as writer:
            ledger = await writer.create_ledger()
            dead = cluster.die(members(ledger)[1])
            pending = [ledger.append_nowait(line) for line in lines(20)]
            await eventually(lambda: dead.bookie_id not in members(ledger), cluster)
            assert [await append for append in pending] == list(range(20))
            assert script.finished
            closed = await ledger.close()
        assert len(closed.fragments) <= 2
        held_by_those_named(cluster, closed)
        assert await read_all(client, ledger.id) == lines(20)

    play()


@scenario(bookies=4)
async def test_c07_a_writer_that_cannot_learn_whether_its_change_landed_confirms_nothing_more(
    cluster: MemoryCluster, client: Client
) -> None:
    lost = AnswersLost()
    async with cluster.client(QUICK, seen_through=lost) as writer:
        ledger = await writer.create_ledger()
        await ledger.append_many(lines(10))
        lost.losing = True
        cluster.die(members(ledger)[1])
        pending = ledger.append_nowait(b"after the change was sent")
        await eventually(lambda: lost.lost > 0, cluster)
        late = ledger.append_nowait(b"later")
        with pytest.raises(MetadataOutcomeUnknown) as caught:
            await late
        assert caught.value.outcome is Outcome.UNKNOWN
        assert pending.done
        lost.losing = False
    assert (await read_all(client, ledger.id))[:10] == lines(10)


@scenario(bookies=5)
async def test_c08_a_repair_of_an_older_fragment_and_a_change_both_survive(
    cluster: MemoryCluster, client: Client
) -> None:
    async with cluster.client(QUICK) as writer:
        ledger = await writer.create_ledger()
        await ledger.append_many(lines(10))
        first = cluster.die(members(ledger)[0])
        pending = [ledger.append_nowait(line) for line in lines(10, start=10)]
        await eventually(lambda: len(ledger.metadata.fragments) == 2, cluster)
        for append in pending:
            await append
        older = ledger.metadata.fragments[0]
        spare = next(name for name in cluster.bookies if name not in {*older.bookies, *members(ledger)})
        copy_ledger(cluster, ledger.id, older.bookies[1], spare)
        repaired = tuple(spare if name == first.bookie_id else name for name in older.bookies)
        await edit(cluster, ledger.id, lambda m: replace(m, fragments=(Fragment(0, repaired), *m.fragments[1:])))
        first.restart()
        await cluster.register(first.bookie_id)
        second = cluster.die(members(ledger)[1])
        more = [ledger.append_nowait(line) for line in lines(10, start=20)]
        await eventually(lambda: second.bookie_id not in members(ledger), cluster)
        for append in more:
            await append
        closed = await ledger.close()
    assert closed.fragments[0] == Fragment(0, repaired), "the repair's edit was lost"
    assert [f.first_entry_id for f in closed.fragments] == sorted({f.first_entry_id for f in closed.fragments})
    assert await read_all(client, ledger.id) == lines(30)


@scenario(bookies=4)
async def test_c01_a_failure_handled_late_works_on_the_metadata_as_they_are_then(
    cluster: MemoryCluster, client: Client
) -> None:
    """A member fails after its batches were confirmed without it, and somebody has edited the metadata meanwhile."""
    async with cluster.client(QUICK) as writer:
        ledger = await writer.create_ledger()
        slow = cluster.bookies[members(ledger)[2]]
        slow.hold_commits()
        await ledger.append_many(lines(10))
        await edit(cluster, ledger.id, lambda m: replace(m, custom={"owner": b"somebody"}))
        cluster.die(slow.bookie_id)
        await eventually(lambda: slow.bookie_id not in members(ledger), cluster)
        await ledger.append_many(lines(10, start=10))
        closed = await ledger.close()
    assert closed.custom == {"owner": b"somebody"}
    held_by_those_named(cluster, closed)
    assert [gap.bookie_id for gap in closed.missed] == [slow.bookie_id]
    assert await read_all(client, ledger.id) == lines(20)


@scenario(bookies=4)
async def test_c11_a_handle_that_is_abandoned_during_a_change_leaves_no_new_fragment(
    cluster: MemoryCluster, client: Client
) -> None:
    slow = Gated()
    async with cluster.client(QUICK, seen_through=slow) as writer:
        ledger = await writer.create_ledger()
        await ledger.append_many(lines(10))
        slow.hold(reads=True)
        cluster.bookies[members(ledger)[0]].hold_commits()
        cluster.die(members(ledger)[1])
        pending = ledger.append_nowait(b"pending")
        await eventually(lambda: slow.waiting > 0, cluster)
        ledger.abandon()
        slow.release()
        with pytest.raises(LedgerClosed):
            await pending
        await cluster.world.clock.sleep(1)
        assert len((await client.ledger_metadata(ledger.id)).fragments) == 1


@pytest.mark.parametrize("closed", [False, True])
def test_c12_a_change_that_finds_the_ledger_recovered_or_closed_ends_the_writer(closed: bool) -> None:
    @scenario(bookies=4)
    async def play(cluster: MemoryCluster, client: Client) -> None:
        async with cluster.client(QUICK) as writer:
            ledger = await writer.create_ledger()
            length = sum(map(len, lines(10)))
            await ledger.append_many(lines(10))
            await edit(cluster, ledger.id, lambda m: close(m, 9, length) if closed else begin_recovery(m))
            cluster.die(members(ledger)[1])
            await eventually(lambda: ledger.ended, cluster)
            with pytest.raises(LedgerClosed if closed else LedgerFenced):
                await ledger.append(b"late")
            assert len((await client.ledger_metadata(ledger.id)).fragments) == 1

    play()


@scenario(bookies=5)
async def test_c17_two_that_die_at_once_are_both_replaced(cluster: MemoryCluster, client: Client) -> None:
    async with cluster.client(QUICK) as writer:
        ledger = await writer.create_ledger()
        await ledger.append_many(lines(10))
        dead = {cluster.die(name).bookie_id for name in members(ledger)[:2]}
        pending = [ledger.append_nowait(line) for line in lines(10, start=10)]
        assert [await append for append in pending] == list(range(10, 20))
        await eventually(lambda: not dead & set(members(ledger)), cluster)
        closed = await ledger.close()
    assert len(closed.fragments) <= 3
    for name in dead:
        cluster.bookies[name].restart()
    assert await read_all(client, ledger.id) == lines(20)


@scenario(bookies=3)
async def test_without_a_spare_the_ledger_goes_on_and_takes_one_as_soon_as_it_appears(
    cluster: MemoryCluster, client: Client
) -> None:
    cluster.add("late-comer")
    async with cluster.client(QUICK) as writer:
        ledger = await writer.create_ledger()
        dead = cluster.die(members(ledger)[1])
        assert await ledger.append_many(lines(20)) == range(20)
        await cluster.world.clock.sleep(3)
        assert dead.bookie_id in members(ledger), "nobody could take its place"
        await cluster.register("late-comer")
        await eventually(lambda: "late-comer" in members(ledger), cluster, seconds=1)
        assert await ledger.append(b"last") == 20
        closed = await ledger.close()
    assert closed.last_fragment.first_entry_id == 20
    assert (closed.missed[0].bookie_id, closed.missed[0].last_entry_id) == (dead.bookie_id, 19)
    held_by_those_named(cluster, closed)


@scenario(bookies=3)
async def test_too_few_bookies_and_no_spare_fail_the_appends(cluster: MemoryCluster, client: Client) -> None:
    async with cluster.client(QUICK) as writer:
        ledger = await writer.create_ledger()
        await ledger.append_many(lines(5))
        for name in members(ledger)[1:]:
            cluster.die(name)
        with pytest.raises(NotEnoughBookies):
            await ledger.append(b"never confirmed")
        assert (await ledger.close()).last_entry_id == 4


@scenario(bookies=4)
async def test_a_bookie_that_all_others_outpace_with_busy_is_replaced(cluster: MemoryCluster, client: Client) -> None:
    """BUSY alone replaces a bookie only while the others form every ack quorum."""
    async with cluster.client(QUICK) as writer:
        ledger = await writer.create_ledger()
        busy = [cluster.bookies[name] for name in members(ledger)]
        for bookie in busy:
            bookie.busy_retry_ms = 20
        pending = ledger.append_nowait(b"all are busy")
        await cluster.world.clock.sleep(6)
        assert not pending.done
        assert len(ledger.metadata.fragments) == 1
        assert members(ledger) == tuple(bookie.bookie_id for bookie in busy), "overload of all is back-pressure"
        for bookie in busy[:2]:
            bookie.busy_retry_ms = None
        assert await pending == 0
        await eventually(lambda: busy[2].bookie_id not in members(ledger), cluster)


# -- members that fall silent ---------------------------------------------------------------------


@scenario(bookies=6)
async def test_two_members_that_hang_are_replaced_by_spares_that_answer(cluster: MemoryCluster, client: Client) -> None:
    async with cluster.client(QUICK) as writer:
        ledger = await writer.create_ledger()
        await ledger.append_many(lines(3))
        hanging = [cluster.bookies[name] for name in members(ledger)[:2]]
        hanging.append(next(bookie for name, bookie in cluster.bookies.items() if name not in members(ledger)))
        for bookie in hanging:
            bookie.pause()
        assert await ledger.append(b"waits for others") == 3
        assert not {bookie.bookie_id for bookie in hanging} & set(members(ledger)), "a spare that hangs is no spare"
        closed = await ledger.close()
        for bookie in hanging:
            bookie.resume()
    held_by_those_named(cluster, closed)


@scenario(bookies=4)
async def test_a_member_that_hangs_and_lets_us_in_is_replaced(cluster: MemoryCluster, client: Client) -> None:
    """Its process greets whoever connects, and its journal is stuck."""
    async with cluster.client(QUICK) as writer:
        ledger = await writer.create_ledger()
        stuck = cluster.bookies[members(ledger)[1]]
        stuck.hold_commits()
        for _ in range(100):
            await ledger.append(b"one more")
            await cluster.world.clock.sleep(0.1)
            if stuck.bookie_id not in members(ledger):
                break
        assert stuck.bookie_id not in members(ledger)
        assert len(ledger.metadata.fragments) == 2
        await ledger.close()


@scenario(bookies=8)
async def test_bookies_that_connect_and_never_ack_do_not_hold_an_append_for_ever(
    cluster: MemoryCluster, client: Client
) -> None:
    async with cluster.client(QUICK) as writer:
        ledger = await writer.create_ledger()
        await ledger.append_many(lines(3))
        for bookie in cluster.bookies.values():
            if bookie.bookie_id != members(ledger)[0]:
                bookie.hold_commits()
        started = cluster.world.clock.monotonic()
        with pytest.raises(NotEnoughBookies):
            await ledger.append(b"never confirmed")
        assert cluster.world.clock.monotonic() - started < 5 * QUICK.add_timeout_ms / 1000
        assert (await ledger.close()).last_entry_id == 2


@scenario(bookies=6)
async def test_bookies_that_are_slow_but_ack_in_time_keep_the_writer_going(
    cluster: MemoryCluster, client: Client
) -> None:
    async def slowly(method: str, _ledger_id: int) -> None:
        if method == "add":
            await cluster.world.clock.sleep(1.0)

    async with cluster.client(QUICK) as writer:
        ledger = await writer.create_ledger()
        await ledger.append_many(lines(3))
        for bookie in cluster.bookies.values():
            bookie.gate = slowly
        for name in members(ledger)[:2]:
            cluster.die(name)
        assert await ledger.append(b"late, and confirmed") == 3
        assert len(ledger.metadata.fragments) <= 3
        await ledger.close()


@scenario(bookies=4)
async def test_a_membership_that_cannot_be_read_replaces_nobody_and_ends_nobody(
    cluster: MemoryCluster, client: Client
) -> None:
    async with cluster.client(QUICK) as writer:
        ledger = await writer.create_ledger()
        await ledger.append_many(lines(3))
        spare = next(name for name in cluster.bookies if name not in members(ledger))
        cluster.metadata.bookies[spare].value = b"of a newer version"
        cluster.die(members(ledger)[0])
        assert await ledger.append_many(lines(20, start=3)) == range(3, 23)
        await cluster.world.clock.sleep(5)
        assert await ledger.append(b"goes on with two") == 23
        ledger.abandon()
        assert (await writer.recover_ledger(ledger.id)).last_entry_id == 23


# -- recovery -------------------------------------------------------------------------------------


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
    held_by_those_named(cluster, metadata, ack_quorum=3)
    assert await read_all(client, ledger.id) == lines(20)


@scenario(bookies=4)
async def test_c27_another_recovery_ends_what_one_left_before_its_close(cluster: MemoryCluster, client: Client) -> None:
    ledger = await client.create_ledger()
    await ledger.append_many(lines(20))
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
    ledger = await client.create_ledger()
    await ledger.append_many(lines(10))
    ledger.abandon()
    old = members(ledger)
    spare = next(name for name in cluster.bookies if name not in old)
    slow = Gated()
    slow.hold(after=1)
    async with cluster.client(QUICK, seen_through=slow) as recoverer:
        opened = asyncio.ensure_future(recoverer.recover_ledger(ledger.id))
        await eventually(lambda: slow.waiting > 0, cluster)
        copy_ledger(cluster, ledger.id, old[0], spare)
        moved = Fragment(0, (spare, *old[1:]))
        await edit(cluster, ledger.id, lambda m: replace(m, fragments=(moved,)))
        slow.release()
        closed = await opened
    assert closed.fragments == (moved,)
    assert closed.last_entry_id == 9
    assert cluster.bookies[spare].durably_fenced(ledger.id), "the second run worked on the fragment as it is now"


@scenario(bookies=4)
async def test_c30_recoveries_at_once_agree_and_the_old_writer_hears_of_it(
    cluster: MemoryCluster, client: Client
) -> None:
    ledger = await client.create_ledger()
    await ledger.append_many(lines(10))
    clients = [cluster.client(QUICK) for _ in range(3)]
    try:
        ends = await asyncio.gather(*(each.recover_ledger(ledger.id) for each in clients))
    finally:
        for each in clients:
            await each.close()
    assert {(end.last_entry_id, end.length) for end in ends} == {(9, ends[0].length)}
    with pytest.raises((LedgerFenced, LedgerClosed)):
        await ledger.append(b"late")
    with pytest.raises(TallybookError):
        await ledger.close()


# -- equipment ------------------------------------------------------------------------------------


def named(cluster: MemoryCluster, ledger: LedgerWriter) -> list[MemoryBookie]:
    return [cluster.bookies[name] for name in members(ledger)]


def copy_ledger(cluster: MemoryCluster, ledger_id: int, source: str, target: str) -> None:
    """What a repair does before it edits the metadata."""
    for batch in cluster.bookies[source].durable_batches(ledger_id).values():
        cluster.bookies[target].add(batch, b"", lambda answer: None, recovery=True)


async def edit(
    cluster: MemoryCluster, ledger_id: int, change: Callable[[LedgerMetadata], LedgerMetadata]
) -> LedgerMetadata:
    """Somebody else changes a ledger's metadata."""
    store = cluster.metadata.client().store
    found = await store.read_ledger(ledger_id)
    assert isinstance(await store.update_ledger(change(found.value), found.version), Ok)
    return change(found.value)


class _Through:
    """One client's view of the store, which a test holds up."""

    def __init__(self) -> None:
        self.inner: MetadataStore | None = None

    def __call__(self, store: MetadataStore) -> MetadataStore:
        self.inner = store
        return self  # type: ignore[return-value]

    def __getattr__(self, name: str) -> object:
        return getattr(self.inner, name)

    def watch_ledger(self, ledger_id: int) -> LedgerWatch:
        assert self.inner is not None
        return self.inner.watch_ledger(ledger_id)


class Gated(_Through):
    """Updates, and reads if asked for, wait while it is closed."""

    def __init__(self) -> None:
        super().__init__()
        self._open = asyncio.Event()
        self._open.set()
        self._reads = False
        self._passing = 0
        self.waiting = 0

    def hold(self, *, reads: bool = False, after: int = 0) -> None:
        """Let ``after`` more through, and then no more."""
        self._reads, self._passing = reads, after
        self._open.clear()

    def release(self) -> None:
        self._open.set()

    async def _pass(self) -> None:
        if self._passing:
            self._passing -= 1
            return
        self.waiting += 1
        await self._open.wait()
        self.waiting -= 1

    async def read_ledger(self, ledger_id: int, *, linearizable: bool = False) -> object:
        assert self.inner is not None
        if self._reads:
            await self._pass()
        return await self.inner.read_ledger(ledger_id, linearizable=linearizable)

    async def update_ledger(self, metadata: LedgerMetadata, expected_version: int) -> WriteResult:
        assert self.inner is not None
        await self._pass()
        return await self.inner.update_ledger(metadata, expected_version)


class AnswersLost(_Through):
    """While it loses, updates are lost on the way and nothing can be read."""

    def __init__(self) -> None:
        super().__init__()
        self.losing = False
        self.lost = 0

    async def update_ledger(self, metadata: LedgerMetadata, expected_version: int) -> WriteResult:
        assert self.inner is not None
        if self.losing:
            self.lost += 1
            return Unknown("lost on purpose")
        return await self.inner.update_ledger(metadata, expected_version)
