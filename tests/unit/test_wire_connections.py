"""The connection pool: one attempt at a time, backoff, changed incarnations. And the request budget."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from tallybook.bookie.ledgers.key_verification import LedgerFacts
from tallybook.bookie.rpc.service import BookieService
from tallybook.client.connection.pool import REFUSAL_SECONDS, BookieConnections
from tallybook.core.answers import AddAnswer
from tallybook.core.batch import encode_batch
from tallybook.core.errors import BookieUnavailable, InvalidConfig, InvariantViolation, StaleIncarnation
from tallybook.core.settings import BookieSettings, ClientSettings
from tallybook.metadata.store import BookieInfo
from tallybook.runtime.concurrency.weighted_semaphore import WeightedSemaphore
from tallybook.runtime.tasks import Tasks
from tallybook.sim.deterministic import SimNet
from tallybook.sim.memory_bookie.bookie import MemoryBookie
from tallybook.wire.batches import WRITER_RETURN_SECONDS

from ..simulated import on_stage

PAUSE_SECONDS = 0.5


class Members:
    """A membership with scripted answers."""

    def __init__(self) -> None:
        self.known: dict[str, BookieInfo] = {}
        self.asked = 0

    async def bookies(self):
        self.asked += 1
        return dict(self.known)


class Town:
    """Some bookies on a network, a membership, and the pool of one client."""

    def __init__(self, world) -> None:
        self.clock = world.clock
        self.net = SimNet(world.rng.fork("net"))
        self.tasks = Tasks("test", lambda name, error: pytest.fail(f"{name}: {error!r}"))
        self.members = Members()
        self.accepted = 0
        settings = ClientSettings(reconnect_ms=int(PAUSE_SECONDS * 1000), connect_timeout_ms=1000)
        self.pool = BookieConnections(
            self.net.transport("client"), self.members, settings, world.clock, self.tasks, cluster_id="cluster"
        )

    async def facts(self, ledger_id: int) -> LedgerFacts:
        return LedgerFacts(b"")

    async def start(
        self, bookie_id: str, *, cluster: str = "cluster", bookie: MemoryBookie | None = None
    ) -> MemoryBookie:
        """Serve and register a bookie."""
        made = bookie or MemoryBookie(bookie_id, facts_of=self.facts, clock=self.clock, tasks=self.tasks)
        settings = BookieSettings(data_directory="/nowhere", metadata="memory:")
        service = BookieService(made, settings, self.clock, self.tasks, cluster, pytest.fail)

        async def accept(lane, stream):
            self.accepted += 1
            await service.accept(lane, stream)

        listener = await self.net.transport(bookie_id).listen(f"{bookie_id}:1", accept)
        self.members.known[bookie_id] = BookieInfo(bookie_id, listener.address, made.incarnation)
        return made


@asynccontextmanager
async def new_town(world):
    made = Town(world)
    yield {"town": made}
    await made.pool.close()
    for name in ("b1", "b2"):
        made.net.kill(name)
    await world.clock.sleep(20)
    assert made.net.stream_count == 0
    await made.tasks.close()


in_a_town = on_stage(new_town)


@in_a_town
async def test_concurrent_callers_share_one_attempt_and_its_connection_is_kept(town):
    await town.start("b1")
    await town.start("b2")
    asking = [asyncio.ensure_future(town.pool.get("b1")) for _ in range(50)]
    await asyncio.sleep(0)
    asking[0].cancel()
    found = await asyncio.gather(*asking[1:])
    assert asking[0].cancelled(), "and it alone"
    assert all(connection is found[0] for connection in (*found, await town.pool.get("b1")))
    assert town.accepted == 3
    assert (found[0].bookie_id, (await town.pool.get("b2")).bookie_id) == ("b1", "b2")


@in_a_town
async def test_after_a_failure_all_callers_get_it_until_the_pause_is_over(town):
    for _ in range(5):
        with pytest.raises(BookieUnavailable, match="not registered"):
            await town.pool.get("b1")
    assert town.members.asked == 1
    await town.start("b1")
    with pytest.raises(BookieUnavailable):
        await town.pool.get("b1")
    await town.clock.sleep(PAUSE_SECONDS)
    assert (await town.pool.get("b1")).bookie_id == "b1"


@in_a_town
async def test_a_lost_connection_is_replaced_when_it_is_asked_for(town):
    bookie = await town.start("b1")
    lost = await town.pool.get("b1")
    town.net.kill("b1")
    await town.clock.sleep(1)
    assert lost.broken
    bookie.restart()
    await town.start("b1", bookie=bookie)
    found = await town.pool.get("b1")
    assert found is not lost
    assert found.incarnation == bookie.incarnation
    assert found.incarnation.boot == 2


@in_a_town
async def test_open_ledgers_are_attached_again_after_a_restart_of_the_bookie_and_no_others(town):
    bookie = await town.start("b1")
    first = await town.pool.get("b1")
    for ledger_id in (1, 2):
        first.attach(ledger_id, b"")
    first.forget(2)
    first.attach(3, b"the key of another ledger")
    town.net.kill("b1")
    await town.clock.sleep(20)
    bookie.restart()
    await town.start("b1", bookie=bookie)
    await town.clock.sleep(WRITER_RETURN_SECONDS)
    found = await town.pool.get("b1")
    assert [(await found.held(ledger_id, 0, 0)).writer for ledger_id in (1, 2, 3)] == [True, False, False]
    # A handle still has the connection that was lost; what it has open does not end with that.
    first.forget(1)
    await town.clock.sleep(1)
    assert (await found.held(1, 0, 0)).writer is False


@in_a_town
async def test_a_lost_connection_over_which_nothing_is_written_stays_away_until_it_is_asked_for(town):
    await town.start("b1")
    (await town.pool.get("b1")).attach(1, b"k")
    (await town.pool.get("b1")).forget(1)
    accepted = town.accepted
    town.net.kill("b1")
    await town.start("b1")
    await town.clock.sleep(WRITER_RETURN_SECONDS)
    assert town.accepted == accepted


@in_a_town
async def test_another_life_than_the_registered_one_is_refused(town):
    bookie = await town.start("b1")
    registered = town.members.known["b1"]
    bookie.restart()
    with pytest.raises(StaleIncarnation):
        await town.pool.get("b1")
    town.members.known["b1"] = BookieInfo("b1", registered.address, bookie.incarnation)
    await town.clock.sleep(PAUSE_SECONDS)
    assert (await town.pool.get("b1")).incarnation == bookie.incarnation


@in_a_town
async def test_the_log_says_now_and_then_that_a_bookie_refuses_this_client(town, *, caplog):
    caplog.set_level("WARNING", "tallybook.client.connection.pool")
    await town.start("b1", cluster="elsewhere")
    until = town.clock.monotonic() + 2 * REFUSAL_SECONDS - 1
    while town.clock.monotonic() < until:
        with pytest.raises(InvalidConfig):
            await town.pool.get("b1")
        await town.clock.sleep(PAUSE_SECONDS)
    told = [record for record in caplog.records if record.getMessage() == "no connection to bookie"]
    assert [record.tallybook_fields["bookie_id"] for record in told] == ["b1", "b1"]
    assert "cluster" in told[0].tallybook_fields["error"]


@in_a_town
async def test_a_bookie_that_accepts_and_says_nothing_is_given_up_in_time(town):
    async def mute(lane, stream):
        await town.clock.sleep(100)

    listener = await town.net.transport("b1").listen("b1:1", mute)
    town.members.known["b1"] = BookieInfo("b1", listener.address, None)
    before = town.clock.monotonic()
    with pytest.raises(BookieUnavailable):
        await town.pool.get("b1")
    assert town.clock.monotonic() - before < 1.1


@in_a_town
async def test_a_closed_pool_fails_what_waits_and_opens_nothing_more(town):
    (await town.start("b1")).hold_commits()
    connection = await town.pool.get("b1")
    answers: list[AddAnswer] = []
    connection.add(encode_batch(1, 0, [b"x"], lac=-1, ledger_length=1, written_at_us=0), b"", answers.append)
    asking = asyncio.ensure_future(town.pool.get("b2"))
    await town.clock.sleep(0)
    await town.pool.close()
    with pytest.raises(BookieUnavailable):
        await asking
    await town.clock.sleep(1)
    assert [answer.code for answer in answers] == [BookieUnavailable.wire_code]
    with pytest.raises(BookieUnavailable):
        await town.pool.get("b1")


# -- the allowance ----------------------------------------------------------------------------


async def test_an_allowance_serves_in_the_order_of_asking_the_large_not_overtaken_by_the_small():
    allowance = WeightedSemaphore(10)
    await allowance.take(6)
    order = []

    async def take(units):
        await allowance.take(units)
        order.append(units)

    waiting = [asyncio.ensure_future(take(units)) for units in (8, 1, 2)]
    await asyncio.sleep(0)
    assert order == []
    allowance.give(6)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert order == [8, 1]
    allowance.give(8)
    await asyncio.gather(*waiting)
    assert allowance.in_use == 3


async def test_a_waiter_cancelled_as_its_turn_comes_loses_nothing_of_the_allowance():
    allowance = WeightedSemaphore(1)
    await allowance.take(1)
    waiting = asyncio.ensure_future(allowance.take(1))
    await asyncio.sleep(0)
    allowance.give(1)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert allowance.in_use == 0
    await allowance.take(1)


async def test_a_waiter_that_gives_up_lets_those_behind_it_pass():
    allowance = WeightedSemaphore(10)
    await allowance.take(5)
    large = asyncio.ensure_future(allowance.take(8))
    small = asyncio.ensure_future(allowance.take(3))
    await asyncio.sleep(0)
    large.cancel()
    await asyncio.gather(large, return_exceptions=True)
    async with asyncio.timeout(1):
        await small
    assert allowance.in_use == 8


async def test_a_failed_allowance_fails_waiting_and_later_calls():
    allowance = WeightedSemaphore(1)
    await allowance.take(1)
    waiting = asyncio.ensure_future(allowance.take(1))
    await asyncio.sleep(0)
    allowance.fail(BookieUnavailable("gone"))
    for attempt in (waiting, allowance.take(1)):
        with pytest.raises(BookieUnavailable):
            await attempt


async def test_more_than_the_whole_allowance_is_a_defect_of_the_caller():
    with pytest.raises(InvariantViolation):
        await WeightedSemaphore(5).take(6)
