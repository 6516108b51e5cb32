"""Every call of every handle: during a close, cancelled by its caller, after the close, and on another event loop.

While the gate is shut, neither bookies nor the metadata store answer, so each call waits.
"""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from tallybook.archive.library import ArchiveLibrary
from tallybook.archive.manifest import Manifest, write_manifest
from tallybook.archive.objects.memory import MemoryObjectStore
from tallybook.client.client import Client
from tallybook.client.reader.handle import LedgerReader
from tallybook.client.writer.handle import LedgerWriter
from tallybook.core.errors import HandleClosed, InvalidArgument, is_defect
from tallybook.runtime.clock import RealClock
from tallybook.runtime.rng import SeededRng
from tallybook.runtime.tasks import InlineWorkers
from tallybook.sim.deterministic import World
from tallybook.stream import (
    Outgoing,
    Position,
    Start,
    StreamReader,
    StreamStore,
    StreamWriter,
    SubscriptionReader,
    run_janitor,
)

from ..simulated import Parts, memory_cluster, on_stage
from ..support.ledger_scenario import SMALL, lines
from ..support.memory_cluster import MemoryCluster

pytestmark = pytest.mark.filterwarnings(
    "error:coroutine:RuntimeWarning", "error::pytest.PytestUnraisableExceptionWarning"
)

SOON = 5.0
"""Virtual seconds within which a close must end a call: no time-out of a call is that short."""


class Held:
    """A batch that is never sent."""

    owed_since = 0.0

    def withdraw(self) -> None:
        """Nothing is left."""


HELD = Held()


class Gated:
    """A store, a pool of connections or a connection whose calls wait while the gate is shut."""

    def __init__(self, target: Any, gate: asyncio.Event) -> None:
        self._target = target
        self._gate = gate

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._target, name)
        if name == "add":
            return lambda *args, **how: found(*args, **how) if self._gate.is_set() else HELD
        if name == "close" or not inspect.iscoroutinefunction(found):
            return found

        async def call(*args: Any, **how: Any) -> Any:
            await self._gate.wait()
            result = await found(*args, **how)
            return Gated(result, self._gate) if name == "get" else result

        return call


class Handles:
    """A client, and one of each kind of handle that stands on it."""

    client: Client
    writer: LedgerWriter
    deferred: LedgerWriter
    reader: LedgerReader
    tailing: LedgerReader
    streams: StreamStore
    stream_writer: StreamWriter
    stream_reader: StreamReader
    subscription: SubscriptionReader
    position: Position

    @classmethod
    async def open(cls, cluster: MemoryCluster) -> Handles:
        self = cls()
        self.gate = asyncio.Event()
        self.gate.set()
        world = cluster.client()._cluster
        gated = dataclasses.replace(
            world,
            store=Gated(world.store, self.gate),
            membership=Gated(world.membership, self.gate),
            connections=Gated(world.connections, self.gate),
        )
        self.client = client = Client(gated, SMALL)
        async with await client.create_ledger() as ledger:
            await ledger.append_many(lines(50))
        self.reader = await client.open_ledger(ledger.id)
        self.writer = await client.create_ledger()
        await self.writer.append(b"x")
        self.deferred = await client.create_ledger(deferred_sync=True)
        await self.deferred.append(b"x")
        self.tailing = await client.open_ledger(self.writer.id, recover=False)
        self.streams = StreamStore(client)
        await self.streams.create("s")
        self.stream_writer = await self.streams.writer("s")
        self.position = await self.stream_writer.append(b"x")
        await self.stream_writer.commit()
        self.stream_reader = self.streams.reader("s", start=Start.after(self.position))
        self.subscription = await self.streams.subscribe("s", "billing")
        return self

    async def shut(self) -> None:
        """Let nothing answer any more."""
        self.gate.clear()

    async def fill(self) -> None:
        """Use up the client's budget."""
        budget = self.client.budget
        budget.try_take(budget.limit_bytes - budget.taken_bytes)


Call = Callable[[Handles], Awaitable[object]]

OF_CLIENT: dict[str, Call] = {
    "client.create_ledger": lambda on: on.client.create_ledger(),
    "client.create_unowned_ledger": lambda on: on.client.create_unowned_ledger(),
    "client.reserve_ledger_id": lambda on: on.client.reserve_ledger_id(),
    "client.adopt_ledger": lambda on: on.client.adopt_ledger(on.reader.id),
    "client.open_ledger": lambda on: on.client.open_ledger(on.reader.id),
    "client.recover_ledger": lambda on: on.client.recover_ledger(on.writer.id),
    "client.bookies": lambda on: on.client.bookies(),
    "client.recover_accepting_loss": lambda on: on.client.recover_accepting_loss(on.writer.id),
    "client.ledger_metadata": lambda on: on.client.ledger_metadata(on.reader.id),
    "client.list_ledgers": lambda on: anext(on.client.list_ledgers()),
    "client.delete_ledger": lambda on: on.client.delete_ledger(on.reader.id),
    "reader.read": lambda on: anext(on.reader.read(0, 40)),
    "reader.read_batches": lambda on: anext(on.reader.read_batches(0, 40)),
    "reader.read_sealed": lambda on: anext(on.reader.read_sealed(0, 40)),
    "reader.read_unconfirmed": lambda on: anext(on.reader.read_unconfirmed(0)),
    "reader.read_entry": lambda on: on.reader.read_entry(3),
    "reader.read_batch": lambda on: on.reader.read_batch(3),
    "reader.refresh": lambda on: on.reader.refresh(),
    "reader.read_last_add_confirmed": lambda on: on.tailing.read_last_add_confirmed(),
    "reader.ask_last_add_confirmed": lambda on: on.tailing.ask_last_add_confirmed(),
    "reader.try_read_last_add_confirmed": lambda on: on.tailing.try_read_last_add_confirmed(),
    "tail": lambda on: anext(on.tailing.tail(1)),
    "tail.next": lambda on: on.tailing.tail(1).next(),
    "tail.read_batch": lambda on: on.tailing.tail(1).read_batch(),
    "tail_batches": lambda on: anext(on.tailing.tail_batches(1)),
}
OF_WRITER: dict[str, Call] = {
    "writer.append": lambda on: on.writer.append(b"y"),
    "writer.append_many": lambda on: on.writer.append_many([b"y", b"z"]),
    "writer.force": lambda on: on.deferred.force(),
    "writer.show": lambda on: _behind_a_ledger_append(on, on.writer.show),
    "writer.append_without_room": lambda on: _without_room(on, on.writer.append),
}
CLOSING_WRITER: dict[str, Call] = {
    "writer.close": lambda on: on.writer.close(),
    "writer.close_deferred": lambda on: on.deferred.close(),
}
OF_STORE: dict[str, Call] = {
    "streams.create": lambda on: on.streams.create("t"),
    "streams.create_namespace": lambda on: on.streams.create_namespace(),
    "streams.info": lambda on: on.streams.info("s"),
    "streams.info_by_id": lambda on: on.streams.info_by_id(on.stream_writer.stream_id),
    "streams.sequence_of": lambda on: on.streams.sequence_of("s", on.subscription.cursor),
    "streams.namespace_info": lambda on: on.streams.namespace_info(),
    "streams.stored_bytes": lambda on: on.streams.stored_bytes("s"),
    "streams.lag": lambda on: on.streams.lag("s", on.subscription.cursor),
    "streams.sweep_lags": lambda on: on.streams.sweep_lags(),
    "streams.delete_namespace": lambda on: on.streams.delete_namespace(),
    "streams.writer_by_id": lambda on: on.streams.writer_by_id(on.stream_writer.stream_id),
    "streams.last": lambda on: on.streams.last("s"),
    "streams.exists": lambda on: on.streams.exists("s"),
    "streams.list": lambda on: anext(on.streams.list()),
    "streams.namespaces": lambda on: anext(on.streams.namespaces()),
    "streams.segments": lambda on: anext(on.streams.segments("s")),
    "streams.subscriptions": lambda on: anext(on.streams.subscriptions("s")),
    "streams.set_policy": lambda on: on.streams.set_policy("s", retention="1h"),
    "streams.rename": lambda on: on.streams.rename("s", "t"),
    "streams.delete": lambda on: on.streams.delete("s"),
    "streams.truncate": lambda on: on.streams.truncate("s", before=on.position),
    "streams.writer": lambda on: on.streams.writer("s"),
    "streams.subscribe": lambda on: on.streams.subscribe("s", "other"),
    "streams.reset_subscription": lambda on: on.streams.reset_subscription("s", "billing", Start.earliest()),
    "streams.unsubscribe": lambda on: on.streams.unsubscribe("s", "billing"),
    "streams.keep": lambda on: on.streams.keep(),
}
OF_STREAM_WRITER: dict[str, Call] = {
    "stream_writer.append": lambda on: on.stream_writer.append(b"y"),
    "stream_writer.append_if": lambda on: on.stream_writer.append(b"y", if_position=on.position),
    "stream_writer.append_many": lambda on: on.stream_writer.append_many([b"y", b"z"]),
    "stream_writer.append_set": lambda on: on.stream_writer.append_set([b"y", b"z"]),
    "stream_writer.send": lambda on: _without_room(on, lambda each: on.stream_writer.send([Outgoing(each)])),
    "stream_writer.send_many": lambda on: _without_room(on, lambda each: on.stream_writer.send_many([each])),
    "stream_writer.append_without_room": lambda on: _without_room(on, on.stream_writer.append),
    "stream_writer.commit": lambda on: _behind_an_append(on, on.stream_writer.commit),
    "stream_writer.flush": lambda on: _behind_an_append(on, on.stream_writer.flush),
    "stream_writer.seal": lambda on: on.stream_writer.seal(),
}
CLOSING_STREAM_WRITER: dict[str, Call] = {
    "stream_writer.close": lambda on: on.stream_writer.close(),
}
OF_STREAM_READER: dict[str, Call] = {
    "stream_reader": lambda on: anext(on.stream_reader),
    "stream_reader.next": lambda on: on.stream_reader.next(),
    "stream_reader.read_batch": lambda on: on.stream_reader.read_batch(),
    "stream_reader.batches": lambda on: anext(on.stream_reader.batches()),
    "stream_reader.begin": lambda on: on.stream_reader.begin(),
}
OF_SUBSCRIPTION: dict[str, Call] = {
    "subscription": lambda on: anext(aiter(on.subscription)),
    "subscription.next": lambda on: on.subscription.next(),
    "subscription.read_batch": lambda on: on.subscription.read_batch(),
    "subscription.batches": lambda on: anext(on.subscription.batches()),
    "subscription.advance": lambda on: on.subscription.advance(on.position),
}
CLOSING_SUBSCRIPTION: dict[str, Call] = {
    "subscription.close": lambda on: _behind_an_advance(on),  # noqa: PLW0108 - it is defined below
}
IN_STREAMS = (
    OF_STORE | OF_STREAM_WRITER | CLOSING_STREAM_WRITER | OF_STREAM_READER | OF_SUBSCRIPTION | CLOSING_SUBSCRIPTION
)
CALLS = OF_CLIENT | OF_WRITER | CLOSING_WRITER | IN_STREAMS


async def _without_room(on: Handles, append: Callable[[bytes], Awaitable[object]]) -> object:
    await on.fill()
    return await append(b"y")


async def _behind_a_ledger_append(on: Handles, call: Callable[[], Awaitable[object]]) -> object:
    on.writer.append_nowait(b"y")
    return await call()


async def _behind_an_append(on: Handles, call: Callable[[], Awaitable[object]]) -> object:
    on.stream_writer.append_nowait(b"y")
    return await call()


async def _behind_an_advance(on: Handles) -> object:
    on.subscription.advance_nowait(on.position)
    return await on.subscription.close()


async def _close_client(on: Handles) -> None:
    await on.client.close()


async def _close_store(on: Handles) -> None:
    closing = asyncio.ensure_future(on.streams.close())
    # It waits for the metadata store itself, to take its session away.
    await asyncio.sleep(0.1)
    on.gate.set()
    await closing


async def _close_reader(on: Handles) -> None:
    await on.stream_reader.close()


def _abandon(*handles: str) -> Call:
    async def abandon(on: Handles) -> None:
        for handle in handles:
            getattr(on, handle).abandon()

    return abandon


CLOSES: dict[str, tuple[dict[str, Call], Call]] = {
    "the client": (CALLS, _close_client),
    "the store": (IN_STREAMS, _close_store),
    "the ledger writer": (OF_WRITER | CLOSING_WRITER, _abandon("writer", "deferred")),
    "the stream writer": (OF_STREAM_WRITER | CLOSING_STREAM_WRITER, _abandon("stream_writer")),
    "the stream reader": (OF_STREAM_READER, _close_reader),
    "the subscription": (OF_SUBSCRIPTION | CLOSING_SUBSCRIPTION, _abandon("subscription")),
}


LEAVE_NO_ROOM = {
    "writer.append_without_room",
    "stream_writer.append_without_room",
    "stream_writer.send",
    "stream_writer.send_many",
}
HANDLES = {
    "client": Client,
    "reader": LedgerReader,
    "writer": LedgerWriter,
    "streams": StreamStore,
    "stream_writer": StreamWriter,
    "stream_reader": StreamReader,
    "subscription": SubscriptionReader,
}
NOT_TRIED = {
    "client.close": "it is the close",
    "streams.close": "it is the close",
    "stream_reader.close": "it is the close",
    "stream_reader.aclose": "it waits for nothing but the end of what it ends",
    "stream_writer.end_stream": "it is the former name of seal",
    "writer.wait_for_limits": "an end ends it, and the next append tells of that",
}


def is_awaited(member: Callable[..., Any]) -> bool:
    """Whether calls of a method are awaited."""
    method = inspect.unwrap(member)
    return inspect.iscoroutinefunction(method) or inspect.get_annotations(method)["return"].startswith("Coroutine[")


def test_every_coroutine_of_a_handle_is_tried() -> None:
    coroutines = {
        f"{handle}.{name}"
        for handle, made in HANDLES.items()
        for name, member in inspect.getmembers(made, inspect.isfunction)
        if not name.startswith("_") and is_awaited(member)
    }
    assert coroutines - CALLS.keys() == NOT_TRIED.keys()


def each_close(*, but: tuple[str, ...] = ()) -> Any:
    found = [
        pytest.param(call, close, id=f"{name} and {what}")
        for what, (calls, close) in CLOSES.items()
        for name, call in calls.items()
        if name not in but
    ]
    return pytest.mark.parametrize(("call", "close"), found)


@asynccontextmanager
async def all_handles(world: World) -> AsyncIterator[Parts]:
    async with memory_cluster(world) as parts:
        on = await Handles.open(parts["cluster"])
        try:
            yield {"on": on}
        finally:
            on.gate.set()
            await on.streams.close()
            await on.client.close()


with_handles = on_stage(all_handles, deadline_seconds=600)


@each_close()
@with_handles
async def test_a_waiting_call_is_ended_by_the_close(on: Handles, *, call: Call, close: Call) -> None:
    await on.shut()
    waiting = asyncio.ensure_future(call(on))
    await asyncio.sleep(0.5)
    assert not waiting.done(), waiting
    closing = asyncio.ensure_future(close(on))
    await asyncio.wait([waiting], timeout=SOON)
    assert waiting.done(), "it was told nothing"
    assert not waiting.cancelled(), "nobody has cancelled it but the close"
    assert isinstance(waiting.exception(), HandleClosed), waiting
    await closing


# A stream writer that is closed or abandoned has nothing to close.
@each_close(but=("stream_writer.close",))
@with_handles
async def test_a_call_that_comes_after_the_close_is_refused(on: Handles, *, call: Call, close: Call) -> None:
    await close(on)
    with pytest.raises(HandleClosed) as refused:
        async with asyncio.timeout(SOON):
            await call(on)
    assert not is_defect(refused.value)


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_call_that_its_caller_cancels_is_cancelled_also_where_a_close_follows_at_once(call: Call) -> None:
    for closed_too in (False, True):

        @with_handles
        async def body(on: Handles, *, closed_too: bool = closed_too) -> None:
            await on.shut()
            waiting = asyncio.ensure_future(call(on))
            await asyncio.sleep(0.5)
            waiting.cancel()
            closing = asyncio.ensure_future(on.client.close()) if closed_too else None
            await asyncio.wait([waiting], timeout=SOON)
            assert waiting.cancelled(), waiting
            if closing is not None:
                await closing

        body()


@with_handles
async def test_a_task_group_is_not_left_in_silence_when_the_client_of_one_of_its_tasks_is_closed(on: Handles) -> None:
    await on.shut()

    async def consume() -> None:
        async for _ in on.reader.read(0, 40):
            pass

    async def close() -> None:
        await asyncio.sleep(0.5)
        await on.client.close()

    async def both() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(consume())
            group.create_task(close())

    with pytest.raises(ExceptionGroup) as failed:
        await both()
    assert failed.group_contains(HandleClosed)


@with_handles
async def test_nothing_of_a_store_goes_on_when_its_client_is_closed_and_neither_is_opened_again(on: Handles) -> None:
    before = asyncio.all_tasks()
    reading = asyncio.ensure_future(on.stream_reader.next())
    keeping = asyncio.ensure_future(run_janitor(on.streams, on.client.world.clock, on.client.world.rng, 1.0))
    await asyncio.sleep(0.5)
    await on.client.close()
    await asyncio.wait([reading, keeping], timeout=SOON)
    for ended in (reading, keeping):
        assert isinstance(ended.exception(), HandleClosed)
    await asyncio.sleep(SOON)
    left = {task.get_name() for task in asyncio.all_tasks() - before}
    assert not left, "background work of a closed client"
    assert not any("streams/" in task.get_name() for task in asyncio.all_tasks())
    for again in (on.client.__aenter__, on.streams.keep):
        with pytest.raises(HandleClosed):
            await again()


def test_a_call_on_another_event_loop_is_refused() -> None:
    first, second = asyncio.new_event_loop(), asyncio.new_event_loop()
    cluster = MemoryCluster(SimpleNamespace(clock=RealClock(), rng=SeededRng(1)), bookies=3)  # type: ignore[arg-type]

    async def begin() -> Handles:
        await cluster.start()
        return await Handles.open(cluster)

    on = first.run_until_complete(begin())
    calls = CALLS | {"client.close": lambda on: on.client.close()}
    for name, call in calls.items():
        if name in LEAVE_NO_ROOM:
            continue

        async def refused(call: Call = call, name: str = name) -> None:
            with pytest.raises(InvalidArgument, match="another event loop"):
                async with asyncio.timeout(SOON):
                    await call(on)

        second.run_until_complete(refused())
    second.close()

    async def end() -> None:
        assert await on.writer.append(b"good still") == 1
        await on.streams.close()
        await on.client.close()
        await cluster.stop()

    first.run_until_complete(end())
    first.close()


def test_a_closed_library_fails_running_and_later_reads() -> None:
    async def main() -> None:
        store = MemoryObjectStore(RealClock())
        await write_manifest(store, InlineWorkers(), Manifest("a-cluster", {}, {}))
        library = ArchiveLibrary(store, InlineWorkers())
        async with library:
            assert library.ledgers == {}
        for call in (lambda: anext(library.read(1)), library.__aenter__):
            with pytest.raises(HandleClosed):
                await call()
        with pytest.raises(HandleClosed):
            _ = library.ledgers

    asyncio.run(main())
