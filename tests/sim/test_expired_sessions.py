"""Expired sessions of the simulated metadata store: requests in flight, watches and registrations."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tallybook.core.answers import Incarnation
from tallybook.core.errors import MetadataOutcomeUnknown
from tallybook.core.quorum import Quorum
from tallybook.metadata.ledger.model import Fragment, LedgerMetadata
from tallybook.metadata.store import BookieInfo, Unknown
from tallybook.sim.cluster.metadata import MetadataFaults, MetadataSession, SimMetadata
from tallybook.sim.deterministic import ProcessGate, World

from ..simulated import Parts, on_stage

SLOW = (0.2, 0.2)
"""Seconds on the way there, and back."""
TIMEOUT_SECONDS = 1.0


class Stored:
    """A store with one ledger, and two sessions."""

    def __init__(self, world: World) -> None:
        self.clock = world.clock
        self.metadata = SimMetadata(world.rng, MetadataFaults(), session_seconds=2.0, timeout_seconds=TIMEOUT_SECONDS)
        self.metadata.faults.reconnect_seconds = 0.5
        self.session, self.other = (self.open(name) for name in ("one", "other"))

    def open(self, name: str) -> MetadataSession:
        return self.metadata.session(name, ProcessGate(name))

    async def expired_after(self, seconds: float) -> None:
        await self.clock.sleep(seconds)
        self.session.expire()


@asynccontextmanager
async def store_of_one_ledger(world: World) -> AsyncIterator[Parts]:
    store = Stored(world)
    await store.other.store.create_ledger(ledger(1))
    yield {"store": store}


stored = on_stage(store_of_one_ledger, seed=7, deadline_seconds=600)


def ledger(ledger_id: int, token: str = "token") -> LedgerMetadata:
    return LedgerMetadata(
        ledger_id, Quorum(1, 1, 1), (Fragment(0, ("b0",)),), f"creator {ledger_id}", 0, writer_token=token
    )


@stored
async def test_a_write_in_flight_has_an_unknown_outcome_and_may_have_been_done(store: Stored) -> None:
    store.metadata.faults.delay_seconds = SLOW
    creating = asyncio.create_task(store.session.store.create_ledger(ledger(2)))
    updating = asyncio.create_task(store.session.store.update_ledger(ledger(1, "changed"), 1))
    await store.expired_after(0.3)
    began = store.clock.monotonic()
    with pytest.raises(MetadataOutcomeUnknown):
        await creating
    assert isinstance(await updating, Unknown)
    assert store.clock.monotonic() - began < 0.01, "it is told at once"
    assert {1, 2} == set(store.metadata.versions)
    assert [each.value.writer_token for each in store.metadata.versions[1]] == ["token", "changed"]


@stored
async def test_a_read_in_flight_is_repeated_in_the_next_session(store: Stored) -> None:
    store.metadata.faults.delay_seconds = SLOW
    reading = asyncio.create_task(store.session.store.read_ledger(1))
    await store.expired_after(0.3)
    began = store.clock.monotonic()
    assert (await reading).version == 1
    assert store.clock.monotonic() - began >= 0.4


@stored
async def test_nothing_gets_through_until_the_next_session_is_there(store: Stored) -> None:
    store.session.expire()
    assert not store.session.through
    assert store.other.through
    await store.session.until_through()
    assert 0 < store.clock.monotonic() <= 1.0
    assert (await store.session.store.read_ledger(1)).version == 1


@stored
async def test_every_watch_fires_when_the_next_session_begins_and_not_before(store: Stored) -> None:
    store.metadata.faults.reconnect_seconds = 5.0
    watches = [store.session.store.watch_ledger(1), store.session.membership.watch()]
    others = store.other.store.watch_ledger(1)
    closed = store.session.store.watch_ledger(1)
    await closed.close()
    await store.clock.sleep(1.0)
    store.session.expire()
    told = [asyncio.create_task(watch.changed()) for watch in watches]
    unmoved = asyncio.create_task(others.changed())
    while not store.session.through:
        assert not any(task.done() for task in told)
        await store.clock.sleep(0.01)
    await asyncio.wait(told, timeout=0.1)
    assert all(task.done() for task in told)
    await store.clock.sleep(10.0)
    assert not unmoved.done()
    unmoved.cancel()


@stored
async def test_a_change_before_the_next_session_is_notified_then(store: Stored) -> None:
    store.metadata.faults.reconnect_seconds = 5.0
    watch = store.session.store.watch_ledger(1)
    store.session.expire()
    told = asyncio.create_task(watch.changed())
    await store.other.store.update_ledger(ledger(1, "changed"), 1)
    await store.clock.sleep(0.05)
    assert not told.done()
    await told
    assert store.session.through


@stored
async def test_an_entry_that_an_unknown_attempt_left_goes_and_that_of_the_next_attempt_stays(store: Stored) -> None:
    info = BookieInfo("b0", "b0:1", Incarnation("uuid", 1))
    store.metadata.faults.applied = 1.0
    with pytest.raises(MetadataOutcomeUnknown):
        await store.session.membership.register(info)
    assert "b0" in store.metadata.shared.bookies
    await store.clock.sleep(10.0)
    assert "b0" not in store.metadata.shared.bookies
    store.metadata.faults.applied, store.metadata.faults.lost = 0.0, 1.0
    with pytest.raises(MetadataOutcomeUnknown):
        await store.session.membership.register(info)
    store.metadata.faults.lost = 0.0
    await store.session.membership.register(info)
    await store.clock.sleep(10.0)
    assert "b0" in store.metadata.shared.bookies


@pytest.mark.timeout(30)
@stored
async def test_a_replaced_session_waits_while_the_store_is_unavailable(store: Stored) -> None:
    waiting = [asyncio.create_task(each.until_through()) for each in (store.session, store.open("one"))]
    store.metadata.go_away()
    await store.clock.sleep(1)
    assert not any(each.done() for each in waiting)
    store.metadata.heal()
    await asyncio.wait(waiting, timeout=1)
    assert [each.done() for each in waiting] == [False, True]
    waiting[0].cancel()
