"""Many ledgers of one client share a connection: waiting for one must not delay the others."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tallybook.bookie.rpc.service import BookieService
from tallybook.client.client import Client
from tallybook.client.connection.pool import BookieConnections
from tallybook.client.ports import ClientWorld
from tallybook.core.batch import decode_header
from tallybook.core.errors import LedgerFenced
from tallybook.core.settings import ClientSettings
from tallybook.metadata.ledger.model import LedgerMetadata, begin_recovery
from tallybook.metadata.store import BookieInfo, WriteResult
from tallybook.runtime.tasks import Tasks
from tallybook.runtime.transport import MessageStream
from tallybook.sim.deterministic import SimNet, World, run_seed
from tallybook.sim.stage.disk_bookie import tiny_settings
from tallybook.wire.batches import WRITER_RETURN_SECONDS
from tallybook.wire.lanes import Lane

from ..simulated import scenario
from ..support.direct_connections import DirectConnection
from ..support.fault_script import FaultScript
from ..support.faulty_metadata import FaultyMetadataStore
from ..support.late_clock import LateClock
from ..support.ledger_scenario import SMALL, eventually, lines
from ..support.memory_cluster import MemoryCluster
from .parts import hold_commits, release_commits

TIMEOUT_S = SMALL.add_timeout_ms / 1000


class Waiting:
    """A batch that waits in the client, as when others use up the credit of the connection."""

    def __init__(self, connection: DirectConnection, arguments: tuple[Any, ...], more: dict[str, Any]) -> None:
        self.connection = connection
        self.sent_at: float | None = None
        self.withdrawn = False
        self._arguments = arguments
        self._more = more

    @property
    def owed_since(self) -> float:
        return self.connection.progress_at if self.sent_at is None else self.sent_at

    def withdraw(self) -> None:
        self.withdrawn = True

    def send(self, now: float) -> None:
        if not self.withdrawn:
            self.sent_at = now
            _ADD(self.connection, *self._arguments, **self._more)


_ADD = DirectConnection.add


class Held:
    """Holds batches of some ledgers in the client, or never answers them."""

    def __init__(self) -> None:
        self.ledgers: set[int] = set()
        self.bookies: set[str] = set()
        self.unsent: list[Waiting] = []
        self.aborted: list[str] = []
        self.answers = True
        """Whether the bookies answer other adds meanwhile."""


@contextmanager
def held_back(*, sent: bool) -> Iterator[Held]:
    held = Held()

    def add(self: DirectConnection, batch: bytes, key: bytes, on_answer: Any, **more: Any) -> Any:
        if decode_header(batch).ledger_id not in held.ledgers or self.bookie_id not in held.bookies:
            return _ADD(self, batch, key, on_answer, **more)
        if sent:
            return _ADD(self, batch, key, lambda _answer: None, **more)
        held.unsent.append(Waiting(self, (batch, key, on_answer), more))
        return held.unsent[-1]

    right = DirectConnection.abort

    def abort(self: DirectConnection) -> None:
        held.aborted.append(self.bookie_id)
        right(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DirectConnection, "add", add)
        patch.setattr(DirectConnection, "abort", abort)
        yield held


@scenario(bookies=4)
async def test_a_batch_that_was_not_sent_is_no_silence_of_a_bookie_that_answers_others(
    cluster: MemoryCluster, client: Client
) -> None:
    one, other = await client.create_ledger(), await client.create_ledger()
    await asyncio.gather(one.append(b"first"), other.append(b"first"))
    with held_back(sent=False) as held:
        held.ledgers, held.bookies = {one.id}, set(cluster.bookies)
        pending = one.append_nowait(b"waits for its turn")
        began = cluster.world.clock.monotonic()
        while cluster.world.clock.monotonic() < began + 5 * TIMEOUT_S:
            await other.append(b"another one")
            await cluster.world.clock.sleep(0.1)
        assert not pending.done
        for waiting in held.unsent:
            waiting.send(cluster.world.clock.monotonic())
        assert await pending == 1
        assert held.aborted == []
    assert len(one.metadata.fragments) == len(other.metadata.fragments) == 1


@scenario(bookies=3)
async def test_an_unsent_batch_is_given_up_with_a_bookie_that_answers_no_ledger(
    cluster: MemoryCluster, client: Client
) -> None:
    one, other = await client.create_ledger(), await client.create_ledger()
    await asyncio.gather(one.append(b"first"), other.append(b"first"))
    hung = cluster.bookies["bookie-1"]
    with held_back(sent=False) as held:
        held.ledgers, held.bookies = {one.id}, {hung.bookie_id}
        hung.pause()
        await other.append(b"is not answered by the one that hangs")
        await one.append(b"is not even sent to it")
        await eventually(lambda: held.aborted == ["bookie-1"], cluster, seconds=2 * TIMEOUT_S)
    hung.resume()


@scenario(bookies=4)
async def test_a_ledger_whose_acks_stay_out_does_not_break_the_connection_on_which_others_get_theirs(
    cluster: MemoryCluster, client: Client
) -> None:
    one, other = await client.create_ledger(), await client.create_ledger()
    await asyncio.gather(one.append(b"first"), other.append(b"first"))
    silent = one.metadata.last_fragment.bookies[0]
    with held_back(sent=True) as held:
        held.ledgers, held.bookies = {one.id}, {silent}
        await one.append_many(lines(5))
        while silent in one.metadata.last_fragment.bookies:
            await other.append(b"another one")
            await cluster.world.clock.sleep(0.1)
        assert held.aborted == []


@scenario(bookies=3)
async def test_hundreds_of_open_ledgers_continue_at_once_when_a_bookie_dies_and_all_note_what_it_misses(
    cluster: MemoryCluster, client: Client
) -> None:
    ledgers = [await client.create_ledger() for _ in range(300)]
    await asyncio.gather(*(ledger.append(b"first") for ledger in ledgers))
    cluster.die("bookie-0")
    began = cluster.world.clock.monotonic()
    await asyncio.gather(*(ledger.append(b"second") for ledger in ledgers))
    assert cluster.world.clock.monotonic() - began < 1
    # All record what the dead one misses, a few at a time.
    for ledger in ledgers:
        await ledger.close()
        assert [missed.bookie_id for missed in ledger.metadata.missed] == ["bookie-0"]


@scenario(bookies=4)
async def test_a_stall_of_the_event_loop_of_a_client_is_no_silence_of_its_bookies(
    cluster: MemoryCluster, client: Client
) -> None:
    clock = LateClock(cluster.world.clock)
    with held_back(sent=True) as held:
        async with cluster.client(SMALL, clock=clock) as late:
            ledger = await late.create_ledger()
            await ledger.append(b"first")
            hold_commits(cluster)
            pending = ledger.append_nowait(b"its acks come after the loop stood still")
            await clock.sleep(TIMEOUT_S / 4)
            clock.stand_still(3 * TIMEOUT_S)
            await clock.sleep(TIMEOUT_S / 4)
            release_commits(cluster)
            assert await pending == 1
            assert held.aborted == []
            assert len(ledger.metadata.fragments) == 1


class Counted:
    """A client stream at the bookie; counts messages with adds on all streams."""

    messages = 0

    def __init__(self, stream: MessageStream) -> None:
        self._stream = stream

    async def receive(self) -> bytes | None:
        message = await self._stream.receive()
        Counted.messages += message is not None
        return message

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


async def messages_for(world: World, count: int) -> int:
    """Number of messages for one batch of each of so many open ledgers, with the wire of real client and bookie."""
    cluster, net = MemoryCluster(world, bookies=1), SimNet(world.rng.fork("net"))
    await cluster.start()
    tasks, [(name, bookie)] = Tasks("wire", pytest.fail), cluster.bookies.items()
    service = BookieService(bookie, tiny_settings(), world.clock, tasks, "", pytest.fail)

    async def accept(lane: Lane, stream: MessageStream) -> None:
        counted: Any = Counted(stream)
        await service.accept(lane, counted if lane is Lane.ADD else stream)

    listener = await net.transport(name).listen(f"{name}:1", accept)

    async def bookies() -> dict[str, BookieInfo]:
        return {name: BookieInfo(name, listener.address, bookie.incarnation)}

    shared, settings, members = cluster.metadata.client(), ClientSettings(), cast(Any, SimpleNamespace(bookies=bookies))
    pool = BookieConnections(net.transport("client"), members, settings, world.clock, tasks)
    known = ClientWorld(shared.store, shared.membership, pool, world.clock, world.rng.fork("client"), None)
    async with Client(known, settings) as client:
        alone = {"ensemble": 1, "write_quorum": 1, "ack_quorum": 1}
        ledgers = [await client.create_ledger(**alone) for _ in range(count)]
        await asyncio.gather(*(ledger.append(b"first") for ledger in ledgers))
        before = Counted.messages
        await asyncio.gather(*(ledger.append(b"second") for ledger in ledgers))
        found = Counted.messages - before
        for ledger in ledgers:
            ledger.abandon()
    await tasks.close()
    await cluster.stop()
    return found


def test_ten_times_as_many_open_ledgers_take_ten_times_the_messages_at_most() -> None:
    few, many = (run_seed(1, partial(messages_for, count=count), deadline_seconds=600).value for count in (200, 2000))
    assert 0 < many <= 10 * few


class SlowStore(FaultyMetadataStore):
    """A metadata store that delays ledger updates by ``seconds``."""

    seconds = 0.0
    updates = 0

    async def update_ledger(self, metadata: LedgerMetadata, expected_version: int) -> WriteResult:
        self.updates += 1
        await self._clock.sleep(self.seconds)
        return await super().update_ledger(metadata, expected_version)


@scenario(bookies=3)
async def test_a_ledger_without_an_ack_quorum_does_not_wait_for_what_others_have_to_note(
    cluster: MemoryCluster, client: Client
) -> None:
    stores: list[SlowStore] = []

    def slowly(store: Any) -> SlowStore:
        stores.append(SlowStore(store, FaultScript([]), cluster.world.clock))
        return stores[0]

    settings = SMALL.model_copy(update={"max_pending_bytes": 1 << 20})
    async with cluster.client(settings, seen_through=slowly) as writing:
        ledgers = [await writing.create_ledger() for _ in range(500)]
        await asyncio.gather(*(ledger.append(b"first") for ledger in ledgers))
        stores[0].seconds = 2.0
        cluster.die("bookie-0")
        await asyncio.gather(*(ledger.append(b"second") for ledger in ledgers))
        await eventually(lambda: stores[0].updates > 10, cluster)
        cluster.add("bookie-3")
        await cluster.register("bookie-3")
        with held_back(sent=True) as held:
            held.ledgers, held.bookies = {ledgers[-1].id}, {"bookie-1"}
            began = cluster.world.clock.monotonic()
            await ledgers[-1].append(b"third")
        # Its bookie is silent for one time-out; one update may be in flight, and one more is the ledger's own.
        assert cluster.world.clock.monotonic() - began < TIMEOUT_S + 3 * 2.0
        assert stores[0].updates < len(ledgers), "others are still at it"
        stores[0].seconds = 0.0


@contextmanager
def forgotten_ledgers() -> Iterator[set[tuple[str, int]]]:
    """Detach calls: bookies and ledgers."""
    forgotten: set[tuple[str, int]] = set()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DirectConnection, "forget", lambda self, ledger_id: forgotten.add((self.bookie_id, ledger_id)))
        yield forgotten


@scenario(bookies=4)
async def test_a_replaced_bookie_that_answers_others_gets_a_detach_of_the_ledger(
    cluster: MemoryCluster, client: Client
) -> None:
    ledger = await client.create_ledger()
    await ledger.append(b"first")
    full = cluster.bookies[ledger.metadata.last_fragment.bookies[1]]
    with forgotten_ledgers() as forgotten:
        full.read_only = True
        await ledger.append(b"second")
        await eventually(lambda: full.bookie_id not in ledger.metadata.last_fragment.bookies, cluster)
        await cluster.world.clock.sleep(1)
        assert forgotten == {(full.bookie_id, ledger.id)}
    await ledger.close()


@pytest.mark.parametrize("noticed", [False, True])
@scenario(bookies=3)
async def test_a_ledger_that_another_client_took_is_forgotten_with_its_close(
    cluster: MemoryCluster, client: Client, *, noticed: bool
) -> None:
    async with cluster.client(SMALL) as other:
        ledger = await client.create_ledger()
        await ledger.append(b"first")
        await cluster.edit(ledger.id, begin_recovery)
        if noticed:
            await other.recover_ledger(ledger.id)
            with pytest.raises(LedgerFenced):
                await ledger.append(b"late")
            await cluster.edit(ledger.id, lambda metadata: replace(metadata, last_entry_id=7, length=99))
        with forgotten_ledgers() as forgotten:
            with pytest.raises(LedgerFenced):
                await ledger.close()
            assert forgotten == {(name, ledger.id) for name in cluster.bookies}


@scenario(bookies=3)
async def test_what_a_writer_that_died_had_not_sent_yet_attaches_its_ledger_nowhere_again(
    cluster: MemoryCluster, client: Client
) -> None:
    async with cluster.client(SMALL) as writing:
        ledger = await writing.create_ledger()
        await ledger.append(b"first")
        await client.recover_ledger(ledger.id)
        with held_back(sent=False) as held:
            held.ledgers, held.bookies = {ledger.id}, {"bookie-1", "bookie-2"}
            with pytest.raises(LedgerFenced):
                await ledger.append(b"waits for its turn where it is not refused")
            for waiting in held.unsent:
                waiting.send(cluster.world.clock.monotonic())
            await cluster.world.clock.sleep(WRITER_RETURN_SECONDS)
            members = [await client.world.connections.get(name) for name in sorted(cluster.bookies)]
            assert [(await each.held(ledger.id, 0, 0)).writer for each in members] == [False] * 3
            assert await ledger.show() == 0, "it still says what was confirmed"
