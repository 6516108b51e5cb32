"""Test bench of a bookie's service on a simulated network, with raw streams for tests that violate the protocol.

    @bench(max_streams=3)
    async def test_...(made):
        stream, welcome = await made.open(Lane.READ)

The decorated test runs in virtual time; at its end every stream must have ended.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from inspect import Signature, signature
from typing import Any, Final

from tallybook.bookie.ledgers.key_verification import LedgerFacts
from tallybook.bookie.port import LedgerStore
from tallybook.bookie.rpc.service import BookieService
from tallybook.core.access import Access
from tallybook.core.batch import encode_batch
from tallybook.core.errors import PeerUnavailable, TallybookError, check
from tallybook.core.limits import KIB
from tallybook.core.settings import AdmissionSettings, BookieSettings
from tallybook.runtime.tasks import Tasks
from tallybook.runtime.transport import MessageStream
from tallybook.sim.deterministic import SimNet, World, run_seed
from tallybook.sim.memory_bookie.bookie import MemoryBookie
from tallybook.wire import messages as wire
from tallybook.wire.batches import frame_batch
from tallybook.wire.lanes import Lane

WINDOW_BYTES: Final = 32 * KIB
"""Flow control window of a stream."""

HELLO: Final = wire.Hello("cluster", "test", None)

FactsOf = Callable[[int], Awaitable[LedgerFacts]]
MakeStore = Callable[[], Any]
"""Creates a ``LedgerStore``, or the part of one that the test uses."""


def batch_of(first: int, size: int = 10, ledger_id: int = 1) -> bytes:
    """A batch of one entry of ``size`` bytes."""
    return encode_batch(ledger_id, first, [b"x" * size], lac=-1, ledger_length=10**9, written_at_us=0)


class WireBench:
    """A bookie service with raw streams to it.

    Args:
        store: the bookie; default a ``MemoryBookie``.
        facts_of: key verifiers of the ledgers of a ``MemoryBookie``.
        access: authenticates and authorizes clients.
    """

    def __init__(
        self,
        world: World,
        settings: BookieSettings,
        store: Any = None,
        *,
        facts_of: FactsOf | None = None,
        access: Access | None = None,
    ) -> None:
        self.world = world
        self.net = SimNet(world.rng.fork("net"), window_bytes=WINDOW_BYTES)
        self.failures: list[str] = []
        """Reasons of fail-safes and dead tasks."""
        self.tasks = Tasks("bench", lambda name, error: self.failures.append(f"{name}: {error!r}"))
        self.bookie: Any = store or MemoryBookie(
            "b1", facts_of=facts_of or _no_password, clock=world.clock, tasks=self.tasks
        )
        self.access: Any = access
        store_served: LedgerStore = self.bookie
        self.service = BookieService(
            store_served, settings, world.clock, self.tasks, "cluster", self.failures.append, access
        )

    async def raw(self, lane: Lane) -> MessageStream:
        """A stream before its hello."""
        return await self.net.transport("client").connect("bookie:1", lane, timeout_seconds=1.0)

    async def open(self, lane: Lane, said: wire.Hello = HELLO) -> tuple[MessageStream, wire.Welcome]:
        """A stream after its hello."""
        stream = await self.raw(lane)
        await stream.send(wire.encode_hello(said))
        return stream, wire.decode_welcome(await received(stream))

    async def attached(self, *ledger_ids: int) -> tuple[MessageStream, wire.Welcome]:
        """An Add stream with attached ledgers, by default ledger 1."""
        stream, welcome = await self.open(Lane.ADD)
        for ledger_id in ledger_ids or (1,):
            await stream.send(wire.encode_attach(wire.Attach(ledger_id, b"")))
        return stream, welcome

    async def works(self) -> None:
        """Check that the service still serves another client."""
        stream, _ = await self.attached()
        await stream.send(frame_batch(batch_of(10**6)))
        acks = wire.decode_acks(await received(stream))
        check([ack.answer.code for ack in acks] == [0], f"an add was answered {acks}")
        await stream.close()


async def received(stream: MessageStream) -> bytes:
    """The next message.

    Raises:
        PeerUnavailable: the stream has ended.
    """
    message = await stream.receive()
    if message is None:
        raise PeerUnavailable("the stream ended")
    return message


async def reason_of(stream: MessageStream) -> TallybookError:
    """The error with which the bookie ends a stream; skips earlier messages."""
    while True:
        outcome = _failure_in(await received(stream))
        if outcome is not None:
            check(await stream.receive() is None, "a message after the reason for the end")
            return outcome


async def reply_on(stream: MessageStream, request_id: int) -> wire.Answer | TallybookError:
    """The outcome of a request; skips other replies."""
    while True:
        reply = wire.decode_reply(await received(stream))
        if reply.request_id == request_id:
            return reply.outcome


def bench(
    *,
    store: MakeStore | None = None,
    facts_of: FactsOf | None = None,
    access: Callable[[], Access] | None = None,
    **admission: int,
) -> Callable[[Callable[..., Awaitable[None]]], Callable[..., None]]:
    """Run the decorated test on a bench. ``admission``: fields of ``AdmissionSettings``."""
    settings = BookieSettings(
        data_directory="/nowhere", metadata="memory:", admission=AdmissionSettings.model_validate(admission)
    )

    def decorate(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
        def run(**arguments: Any) -> None:
            async def play(world: World) -> None:
                own = {"facts_of": facts_of, "access": access() if access else None}
                made = WireBench(world, settings, store() if store else None, **own)
                listener = await made.net.transport("bookie").listen("bookie:1", made.service.accept)
                await test(made, **arguments)
                made.net.kill("client")
                await world.clock.sleep(10)
                check(made.service.stream_count == 0, f"{made.service.stream_count} streams were left behind")
                await listener.close(0)
                await made.tasks.close()

            run_seed(1, play, deadline_seconds=3600)

        run.__name__ = test.__name__
        # Parameters for pytest, without the bench.
        run.__signature__ = Signature(list(signature(test).parameters.values())[1:])  # type: ignore[attr-defined]
        return run

    return decorate


def _failure_in(message: bytes) -> TallybookError | None:
    """The error with which a stream ends, if ``message`` has one. Acks are no replies."""
    try:
        reply = wire.decode_reply(message)
    except TallybookError:
        return None
    return reply.outcome if isinstance(reply.outcome, TallybookError) and not reply.request_id else None


async def _no_password(_ledger_id: int) -> LedgerFacts:
    return LedgerFacts(b"")
