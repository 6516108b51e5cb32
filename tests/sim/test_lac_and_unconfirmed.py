"""Reading an open ledger: its LAC, from any bookie, and unconfirmed entries."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from itertools import product

import pytest

from tallybook.client.client import Client
from tallybook.client.connection.lac_updates import LONGEST_PAUSE_SECONDS
from tallybook.client.reader.handle import LedgerReader
from tallybook.client.reader.lac import highest_lac, reported_lac
from tallybook.core.answers import LacAnswer
from tallybook.core.batch import Entry
from tallybook.core.errors import (
    BookieUnavailable,
    Busy,
    DataMissing,
    EntryAbsent,
    EntryUnknown,
    InvalidArgument,
    LedgerClosed,
    LedgerFenced,
    NoSuchLedger,
    ReadBeyondLac,
)
from tallybook.core.quorum import Quorum
from tallybook.metadata.ledger.model import Fragment, LedgerMetadata
from tallybook.runtime.clock import RealClock
from tallybook.runtime.concurrency.async_iterators import LINGER_SECONDS
from tallybook.runtime.concurrency.backoff import Backoff
from tallybook.runtime.rng import SystemRng

from ..sampling import sample
from ..simulated import scenario
from ..support.ledger_scenario import SMALL, eventually, lines
from ..support.memory_cluster import MemoryCluster
from ..support.tail import BackgroundTail
from .parts import written_ledger


def ensemble(ledger) -> tuple[str, ...]:
    return ledger.metadata.last_fragment.bookies


async def quiet(cluster: MemoryCluster) -> None:
    """Wait until the writer has sent its LAC."""
    await cluster.world.clock.sleep(1)


# -- C33: a ledger that is gone --------------------------------------------------------------------


@scenario()
async def test_c33_a_deleted_ledger_is_no_such_ledger_in_every_mode_of_opening(
    cluster: MemoryCluster, client: Client
) -> None:
    closed, left_open = await client.create_ledger(), await client.create_ledger()
    unowned = (await client.create_unowned_ledger()).ledger_id
    for ledger in (closed, left_open):
        await ledger.append_many(lines(5))
    await closed.close()
    left_open.abandon()
    reader = await client.open_ledger(left_open.id, recover=False)
    for ledger_id in (closed.id, left_open.id, unowned):
        await client.delete_ledger(ledger_id)
    for ledger_id in (closed.id, left_open.id, unowned, 10**6):
        for attempt in (
            client.open_ledger(ledger_id),
            client.open_ledger(ledger_id, recover=False),
            client.open_ledger(ledger_id, password=b"any"),
            client.recover_ledger(ledger_id),
            client.adopt_ledger(ledger_id),
            client.ledger_metadata(ledger_id),
            client.delete_ledger(ledger_id),
        ):
            with pytest.raises(NoSuchLedger) as refused:
                await attempt
            assert not refused.value.retriable
    for attempt in (reader.refresh(), reader.read_last_add_confirmed(), anext(reader.tail(5))):
        with pytest.raises(NoSuchLedger):
            await attempt


# -- C35, C40: required answers --------------------------------------------------------------------


class Told:
    """Connections to bookies with one fixed answer each."""

    def __init__(self, answers: Mapping[str, int | type[Exception]]) -> None:
        self._answers = answers

    async def get(self, bookie_id: str):
        return _Says(self._answers[bookie_id])

    async def close(self) -> None:
        pass


class _Says:
    def __init__(self, answer: int | type[Exception]) -> None:
        self._answer = answer

    async def read_lac(self, ledger_id: int, **_identity: bytes) -> LacAnswer:
        if isinstance(self._answer, int):
            return LacAnswer(self._answer, fenced=False)
        raise self._answer("told to")


async def asked(question: Callable[..., Awaitable[int]], metadata: LedgerMetadata, connections: Told) -> int:
    """The expected result, if no bookie is BUSY."""
    busy = Backoff(RealClock(), SystemRng(), first_s=1.0, deadline=0.0)
    return await question(metadata, connections, busy)


SIZES = [
    (e, w, a) for e in range(1, 5) for w in range(1, e + 1) for a in range(1, w + 1)
]  # fmt: skip


@pytest.mark.parametrize("sizes", SIZES, ids=lambda sizes: "".join(map(str, sizes)))
async def test_c35_the_lac_is_known_exactly_where_every_ack_quorum_was_reached(sizes: tuple[int, int, int]) -> None:
    """Every combination of answers: a LAC, unknown ledger (also an answer), or no answer."""
    quorum = Quorum(*sizes)
    names = tuple(f"b{position}" for position in range(quorum.ensemble))
    metadata = LedgerMetadata(1, quorum, (Fragment(0, names),), "c", 0)
    for kinds in product(("lac", EntryAbsent, BookieUnavailable, EntryUnknown), repeat=quorum.ensemble):
        answers = {
            name: 10 + at if kind == "lac" else kind for at, (name, kind) in enumerate(zip(names, kinds, strict=True))
        }
        told = [at for at, kind in enumerate(kinds) if kind in ("lac", EntryAbsent)]
        highest = max((10 + at for at, kind in enumerate(kinds) if kind == "lac"), default=-1)
        # Spelled out: no Qa bookies of any write set may all be silent.
        sets = [[(first + i) % quorum.ensemble for i in range(quorum.write_quorum)] for first in range(quorum.ensemble)]
        met = all(sum(at not in told for at in members) < quorum.ack_quorum for members in sets)
        if met:
            assert await asked(highest_lac, metadata, Told(answers)) == highest
        else:
            with pytest.raises(BookieUnavailable):
                await asked(highest_lac, metadata, Told(answers))
        if told:
            assert await asked(reported_lac, metadata, Told(answers)) == highest
        else:
            with pytest.raises(BookieUnavailable):
                await asked(reported_lac, metadata, Told(answers))


async def test_c35_the_lac_is_at_least_what_the_last_fragment_says() -> None:
    names = ("b0", "b1", "b2")
    metadata = LedgerMetadata(1, Quorum(3, 3, 2), (Fragment(0, names), Fragment(7, ("b1", "b2", "b3"))), "c", 0)
    new = Told({"b1": EntryAbsent, "b2": 3, "b3": EntryAbsent})
    assert await asked(highest_lac, metadata, new) == 6
    assert await asked(reported_lac, metadata, new) == 6


@scenario()
async def test_c40_the_lac_with_all_some_and_no_bookies_up(cluster: MemoryCluster, client: Client) -> None:
    ledger = await written_ledger(client, 10)
    await quiet(cluster)
    reader = await client.open_ledger(ledger.id, recover=False)
    first, second, third = ensemble(ledger)
    # One of them has a higher LAC than the others.
    await cluster.bookies[third].write_lac(ledger.id, 12, b"")
    ledger.abandon()
    assert await reader.try_read_last_add_confirmed() == 12
    cluster.bookies[third].kill()
    assert await reader.try_read_last_add_confirmed() == 12, "what one handle knows never falls"
    other = await client.open_ledger(ledger.id, recover=False)
    assert await other.read_last_add_confirmed() == 9
    cluster.bookies[first].kill()
    assert await other.try_read_last_add_confirmed() == 9
    with pytest.raises(BookieUnavailable, match=rf"too few bookies report its LAC; no answer from {first}, {third}$"):
        await other.read_last_add_confirmed()
    cluster.bookies[second].kill()
    for attempt in (other.try_read_last_add_confirmed(), other.read_last_add_confirmed()):
        with pytest.raises(BookieUnavailable) as refused:
            await attempt
        assert refused.value.retriable
    cluster.bookies[third].restart()
    assert await other.try_read_last_add_confirmed() == 12


@scenario()
async def test_c40_of_a_closed_ledger_no_bookie_is_asked(cluster: MemoryCluster, client: Client) -> None:
    ledger = await written_ledger(client, 10, close=True)
    reader = await client.open_ledger(ledger.id)
    for bookie in cluster.bookies.values():
        bookie.kill()
    assert await reader.try_read_last_add_confirmed() == 9
    assert await reader.read_last_add_confirmed() == 9


# -- C38: the LAC sent on its own ------------------------------------------------------------------


@scenario()
async def test_c38_an_explicit_lac_survives_the_restart_of_the_bookies(cluster: MemoryCluster, client: Client) -> None:
    """No batch carries the LAC of the last one: without an explicit LAC only a recovery can determine it."""
    ledger = await written_ledger(client, 10)
    await quiet(cluster)
    ledger.abandon()
    for bookie in cluster.bookies.values():
        bookie.restart()
    assert (await client.open_ledger(ledger.id, recover=False)).last_add_confirmed == 9


@scenario(bookies=3)
async def test_what_a_writer_shows_is_seen_at_once_though_a_bookie_hangs(
    cluster: MemoryCluster, client: Client
) -> None:
    async with cluster.client(SMALL.model_copy(update={"explicit_lac_ms": 600_000})) as silent:
        ledger = await written_ledger(silent, 10, ensemble=3, write_quorum=3, ack_quorum=2)
        assert (await client.open_ledger(ledger.id, recover=False)).last_add_confirmed < 9
        cluster.bookies["bookie-1"].pause()
        before = cluster.world.clock.monotonic()
        assert await ledger.show() == 9
        assert cluster.world.clock.monotonic() - before < 0.1
        cluster.bookies["bookie-1"].resume()
        assert (await client.open_ledger(ledger.id, recover=False)).last_add_confirmed == 9


@scenario(bookies=3)
async def test_a_lac_that_reached_too_few_bookies_is_not_reported_as_visible(
    cluster: MemoryCluster, client: Client
) -> None:
    async with cluster.client(SMALL.model_copy(update={"explicit_lac_ms": 600_000})) as silent:
        ledger = await written_ledger(silent, 10, ensemble=3, write_quorum=3, ack_quorum=2)
        for name in ("bookie-0", "bookie-1"):
            cluster.die(name)
        assert await ledger.show() == -1
        for name in ("bookie-0", "bookie-1"):
            cluster.bookies[name].restart()
        await cluster.world.clock.sleep(1)
        assert await ledger.show() == 9
        assert (await ledger.close()).last_entry_id == 9
        assert await ledger.show() == 9


@scenario(bookies=4)
async def test_an_explicit_lac_reaches_readers_that_ask_a_part_of_a_wide_ensemble(
    cluster: MemoryCluster, client: Client
) -> None:
    """With 4/2/2, answers that cover each write set may miss the two bookies that know the LAC."""
    async with cluster.client(SMALL.model_copy(update={"explicit_lac_ms": 600_000})) as silent:
        ledger = await written_ledger(silent, 10, ensemble=4, write_quorum=2, ack_quorum=2)
        members = ledger.metadata.last_fragment.bookies
        for at in (1, 3):
            cluster.bookies[members[at]].pause()
        showing = asyncio.ensure_future(ledger.show())
        await cluster.world.clock.sleep(1)
        assert not showing.done(), "a reader may hear these two alone"
        cluster.bookies[members[1]].resume()
        assert await showing == 9
        cluster.bookies[members[3]].resume()


@scenario(bookies=3)
async def test_a_dead_writer_reports_that_its_client_is_closed(cluster: MemoryCluster, client: Client) -> None:
    async with cluster.client(SMALL.model_copy(update={"explicit_lac_ms": 600_000})) as silent:
        died = await written_ledger(silent, 10, ensemble=3, write_quorum=3, ack_quorum=2)
        await client.recover_ledger(died.id)
        with pytest.raises(LedgerFenced):
            await died.append(b"too late")
        # Creating another ledger makes the client drop the dead handle; close does not stop it.
        await silent.create_ledger(ensemble=3, write_quorum=3, ack_quorum=2)
    with pytest.raises(LedgerClosed, match="the client is closed"):
        await died.show()


# -- C39: waiting for more -------------------------------------------------------------------------


def waiters(cluster: MemoryCluster) -> int:
    """Number of open long polls at bookies."""
    return sum(len(waiting) for bookie in cluster.bookies.values() for waiting in bookie._life.lac_waiters.values())


@scenario()
async def test_c39_a_timeout_cancels_the_watcher(cluster: MemoryCluster, client: Client) -> None:
    ledger = await written_ledger(client, 10)
    await quiet(cluster)
    reader = await client.open_ledger(ledger.id, recover=False)
    tail = reader.tail(10)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(60):
            await anext(tail)
    assert waiters(cluster) <= 3, "ended polls left no waiters behind"
    # The caller may come back for a while. Then the polls are left, and end at the bookie with their own timeout.
    await cluster.world.clock.sleep(LINGER_SECONDS + 6)
    assert waiters(cluster) == 0
    assert len(asyncio.all_tasks()) < 20
    await ledger.append(lines(1, 10)[0])
    assert (await anext(reader.tail(10))).payload == lines(1, 10)[0]


@scenario()
async def test_c39_a_wait_continues_while_bookies_are_down_and_sees_later_entries(
    cluster: MemoryCluster, client: Client
) -> None:
    ledger = await written_ledger(client, 10)
    await quiet(cluster)
    tail = BackgroundTail(cluster, ledger.id)
    await tail.until(lines(10))
    for name in ensemble(ledger):
        cluster.bookies[name].kill()
    await cluster.world.clock.sleep(3)
    assert not tail.task.done()
    for name in ensemble(ledger):
        cluster.bookies[name].restart()
    await ledger.append_many(lines(10, 10))
    await tail.until(lines(20), seconds=11)
    await ledger.close()
    await tail.until(lines(20))
    await eventually(tail.task.done, cluster, seconds=1)


@pytest.mark.parametrize("seed", [*sample(range(8))])
def test_c39_no_wake_up_is_lost_however_the_lac_moves(seed: int) -> None:
    """The LAC advances before, during and after each poll; no advance waits for a timeout."""

    @scenario(seed=seed)
    async def play(cluster: MemoryCluster, client: Client) -> None:
        rng = cluster.world.rng.fork("pauses")
        ledger = await client.create_ledger()
        tail = BackgroundTail(cluster, ledger.id)
        for index in range(60):
            await ledger.append(lines(1, index)[0])
            await cluster.world.clock.sleep(rng.random() * 0.01)
        # The explicit LAC follows within 100 ms; a lost wake-up would cost seconds.
        await tail.until(lines(60), seconds=0.3)
        await ledger.close()
        await eventually(tail.task.done, cluster, seconds=0.3)

    play()


@pytest.mark.parametrize("position", range(3))
@scenario()
async def test_c39_a_wait_gets_the_answer_of_the_one_bookie_that_knows(
    cluster: MemoryCluster, client: Client, *, position: int
) -> None:
    """The other bookies are disconnected from the writer, and do not answer long polls without news."""
    ledger = await written_ledger(client, 10)
    ledger.abandon()
    names = ensemble(ledger)
    reader = await client.open_ledger(ledger.id, recover=False)
    assert reader.last_add_confirmed < 9, "the last batch was confirmed, but no bookie knows it"
    waiting = asyncio.ensure_future(anext(reader.tail(9)))
    await cluster.world.clock.sleep(7)
    assert not waiting.done()
    await cluster.bookies[names[position]].write_lac(ledger.id, 9, b"")
    assert (await asyncio.wait_for(waiting, 0.1)).payload == lines(1, 9)[0]


# -- C37: an entry that is missing, in recovery ----------------------------------------------------


@scenario()
async def test_c37_recovery_takes_an_entry_for_missing_as_soon_as_enough_say_so(
    cluster: MemoryCluster, client: Client
) -> None:
    ledger = await written_ledger(client, 10)
    await quiet(cluster)
    ledger.abandon()
    slow = cluster.bookies[ensemble(ledger)[0]]

    async def gate(method: str, _: int) -> None:
        if method == "recovery_read":
            await cluster.world.clock.sleep(4)

    slow.gate = gate
    began = cluster.world.clock.monotonic()
    assert (await client.recover_ledger(ledger.id)).last_entry_id == 9
    assert cluster.world.clock.monotonic() - began < 1


# -- past the LAC ----------------------------------------------------------------------------------


async def collect(entries: AsyncIterator[Entry], into: list[bytes]) -> None:
    async for entry in entries:
        into.append(entry.payload)  # noqa: PERF401 (kept also when an error ends it)


async def with_unconfirmed_at_one(cluster: MemoryCluster, client: Client) -> tuple[LedgerReader, list[str]]:
    """A reader of an abandoned ledger with ten confirmed entries and five on one bookie; and the dead other bookies.

    The writer is dead.
    """
    ledger = await written_ledger(client, 10)
    await quiet(cluster)
    first, second, third = ensemble(ledger)
    reader = await client.open_ledger(ledger.id, recover=False)
    for name in (first, third):
        cluster.bookies[name].kill()
    for payload in lines(5, 10):
        ledger.append_nowait(payload)
    await eventually(lambda: len(cluster.bookies[second].durable_batches(ledger.id)) > 1, cluster)
    ledger.abandon()
    return reader, [first, third]


@scenario()
async def test_unconfirmed_entries_can_be_read_up_to_the_first_that_is_not_there(
    cluster: MemoryCluster, client: Client
) -> None:
    reader, dead = await with_unconfirmed_at_one(cluster, client)
    seen: list[bytes] = []
    # One bookie has them, two do not answer: whether there is a 16th entry is unknown.
    with pytest.raises(BookieUnavailable):
        await collect(reader.read_unconfirmed(5, 100), seen)
    assert seen == lines(10, 5)
    for name in dead:
        cluster.bookies[name].restart()
    assert [entry.payload async for entry in reader.read_unconfirmed(0, 14)] == lines(15)
    seen.clear()
    with pytest.raises(EntryAbsent, match="entry 15"):
        await collect(reader.read_unconfirmed(12, 2**62), seen)
    assert seen == lines(3, 12)
    assert reader.last_add_confirmed == 9, "nothing is confirmed by being read"
    with pytest.raises(ReadBeyondLac):
        await anext(reader.read(0, 14))
    for first_id, last_id in ((5, 4), (-1, 3)):
        with pytest.raises(InvalidArgument):
            await anext(reader.read_unconfirmed(first_id, last_id))


@scenario()
async def test_past_the_end_of_a_closed_ledger_there_is_nothing_even_if_bookies_hold_more(
    cluster: MemoryCluster, client: Client
) -> None:
    ledger = await written_ledger(client, 10)
    await quiet(cluster)
    reader = await client.open_ledger(ledger.id, recover=False)
    first, second, third = ensemble(ledger)
    # Only the first gets it; then recovery, which that one misses, cuts it off.
    for name in (second, third):
        cluster.bookies[name].pause()
    ledger.append_nowait(b"never confirmed")
    await eventually(lambda: len(cluster.bookies[first].durable_batches(ledger.id)) > 1, cluster)
    ledger.abandon()
    for name in (second, third):
        cluster.bookies[name].restart()
    cluster.bookies[first].pause()
    assert (await client.recover_ledger(ledger.id)).last_entry_id == 9
    cluster.bookies[first].resume()
    assert [entry.payload async for entry in reader.read_unconfirmed(10, 10)] == [b"never confirmed"], "seen too early"
    await reader.refresh()
    assert reader.closed
    with pytest.raises(EntryAbsent, match="ends at entry 9"):
        await anext(reader.read_unconfirmed(10, 10))
    assert [entry.payload async for entry in reader.read_unconfirmed(0, 9)] == lines(10)


@scenario()
async def test_without_a_last_entry_all_there_is_can_be_read_and_the_end_is_no_error(
    cluster: MemoryCluster, client: Client
) -> None:
    reader, dead = await with_unconfirmed_at_one(cluster, client)
    seen: list[bytes] = []
    # One bookie has them, two do not answer: it is unknown whether there is no 16th entry.
    with pytest.raises(BookieUnavailable):
        await collect(reader.read_unconfirmed(5), seen)
    assert seen == lines(10, 5)
    for name in dead:
        cluster.bookies[name].restart()
    assert [entry.payload async for entry in reader.read_unconfirmed(0)] == lines(15)
    assert [entry.payload async for entry in reader.read_unconfirmed(14)] == lines(1, 14)
    assert [entry.payload async for entry in reader.read_unconfirmed(15)] == []
    with pytest.raises(InvalidArgument):
        await anext(reader.read_unconfirmed(-1))
    closed = await client.recover_ledger(reader.id)
    assert closed.last_entry_id == 14
    assert [entry.payload async for entry in reader.read_unconfirmed(12)] == lines(3, 12)
    # What was confirmed has to be there: its absence is no end.
    for name in reader.metadata.last_fragment.bookies:
        cluster.bookies[name].drop(reader.id, 12)
    with pytest.raises(DataMissing):
        await collect(reader.read_unconfirmed(12), seen)


@scenario()
async def test_without_a_last_entry_the_end_of_a_closed_ledger_is_the_end(
    cluster: MemoryCluster, client: Client
) -> None:
    ledger = await written_ledger(client, 10, close=True)
    async with await client.create_ledger() as empty:
        pass
    reader = await client.open_ledger(ledger.id)
    assert [entry.payload async for entry in reader.read_unconfirmed(0)] == lines(10)
    assert [entry.payload async for entry in reader.read_unconfirmed(10)] == []
    assert [entry async for entry in (await client.open_ledger(empty.id)).read_unconfirmed(0)] == []


@scenario(bookies=5)
async def test_without_a_last_entry_a_striped_ledger_is_read_across_its_stripes(
    cluster: MemoryCluster, client: Client
) -> None:
    ledger = await written_ledger(client, 30, ensemble=5, write_quorum=2, ack_quorum=2, stripe_entries=4)
    await quiet(cluster)
    reader = await client.open_ledger(ledger.id, recover=False)
    assert [entry.payload async for entry in reader.read_unconfirmed(3)] == lines(27, 3)
    ledger.abandon()


# -- explicit LACs ---------------------------------------------------------------------------------


@scenario(deadline_seconds=3600)
async def test_c38_an_entry_comes_into_view_though_bookies_were_too_busy_for_its_lac(
    cluster: MemoryCluster, client: Client
) -> None:
    refused = 0

    async def busy(ledger_id: int, lac: int, key: bytes) -> None:
        nonlocal refused
        refused += 1
        raise Busy("no room now", retry_after_ms=10)

    async with cluster.client(SMALL) as writing:
        ledger = await writing.create_ledger()
        with pytest.MonkeyPatch.context() as patch:
            for bookie in cluster.bookies.values():
                patch.setattr(bookie, "write_lac", busy)
            await ledger.append(b"the last one for long")
            await eventually(lambda: refused >= 3, cluster)
        await cluster.world.clock.sleep(LONGEST_PAUSE_SECONDS)
        assert (await client.open_ledger(ledger.id, recover=False)).last_add_confirmed == 0


@pytest.mark.parametrize("told", [False, True], ids=["before it is told", "before it is taken"])
@scenario(deadline_seconds=3600)
async def test_c38_an_entry_comes_into_view_though_connections_were_lost_with_its_lac(
    cluster: MemoryCluster, client: Client, *, told: bool
) -> None:
    taken = 0

    async def hang(ledger_id: int, lac: int, key: bytes) -> None:
        nonlocal taken
        taken += 1
        await asyncio.Event().wait()

    async with cluster.client(SMALL) as writing:
        ledger = await writing.create_ledger()
        connections = [await writing.world.connections.get(name) for name in ensemble(ledger)]
        with pytest.MonkeyPatch.context() as patch:
            for bookie in cluster.bookies.values():
                patch.setattr(bookie, "write_lac", hang)
            await ledger.append(b"the last one for long")
            if told:
                await eventually(lambda: taken >= 3, cluster)
            for connection in connections:
                connection.abort()
        await cluster.world.clock.sleep(LONGEST_PAUSE_SECONDS)
        assert (await client.open_ledger(ledger.id, recover=False)).last_add_confirmed == 0
