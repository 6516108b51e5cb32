"""Which transport a client uses for adds and reads: the TCP port of a bookie, or gRPC if that fails."""

from contextlib import asynccontextmanager
from functools import partial

from tallybook.client.connection.tcp_routes import AVOID_SECONDS, TcpRoutes
from tallybook.core.answers import AddAnswer
from tallybook.wire import messages as wire
from tallybook.wire.lanes import Lane

from ..simulated import on_stage
from .test_wire_client import WELCOME, Answers, batch, scripted_bookie

TCP_PORT = 77


@asynccontextmanager
async def bookie_with_tcp_port(world):
    """A bookie whose welcomes announce a TCP port, and what is needed to use it."""
    async with scripted_bookie(world) as parts:
        bookie = parts["bookie"]
        for lane in Lane:
            bookie.welcomes[lane] = WELCOME._replace(tcp_port=TCP_PORT)
        over_tcp: list[Lane] = []

        async def accept(lane, stream) -> None:
            over_tcp.append(lane)
            await bookie.accept(lane, stream)

        routes = TcpRoutes(bookie.net.transport("client"), world.clock)
        yield parts | {"routes": routes, "over_tcp": over_tcp, "accept": accept}


with_tcp_port = partial(on_stage, bookie_with_tcp_port)


@with_tcp_port()
async def test_adds_and_reads_use_the_tcp_port_that_the_welcome_announces(bookie, routes, over_tcp, accept):
    listener = await bookie.net.transport("bookie").listen(f"bookie:{TCP_PORT}", accept)
    connection = await bookie.open(tcp=routes)
    assert sorted(over_tcp) == [Lane.ADD, Lane.READ]
    answers = Answers()
    connection.add(batch(0), b"", answers)
    assert await bookie.sent() == 1
    await bookie.ack(1, AddAnswer(1, 0, 1))
    await bookie.settle()
    assert answers == [AddAnswer(1, 0, 1)]
    await connection.close()
    await listener.close(0)


@with_tcp_port()
async def test_a_tcp_port_that_is_not_reached_is_avoided_for_a_while(bookie, routes, over_tcp, accept):
    connection = await bookie.open(tcp=routes)
    assert len(bookie.hellos) == 3, "everything uses gRPC"
    await connection.close()
    listener = await bookie.net.transport("bookie").listen(f"bookie:{TCP_PORT}", accept)
    connection = await bookie.open(tcp=routes)
    assert not over_tcp
    await connection.close()
    await bookie.world.clock.sleep(AVOID_SECONDS)
    connection = await bookie.open(tcp=routes)
    assert sorted(over_tcp) == [Lane.ADD, Lane.READ]
    await connection.close()
    await listener.close(0)


@with_tcp_port()
async def test_another_bookie_behind_the_tcp_port_is_avoided(bookie, routes, over_tcp, accept):
    async def another(_lane, stream) -> None:
        wire.decode_hello(await stream.receive())
        await stream.send(wire.encode_welcome(WELCOME._replace(bookie_id="b2")))
        await stream.receive()

    listener = await bookie.net.transport("bookie").listen(f"bookie:{TCP_PORT}", another)
    connection = await bookie.open(tcp=routes)
    assert sorted(bookie.streams) == sorted(Lane), "everything uses gRPC"
    await connection.close()
    await listener.close(0)


@with_tcp_port()
async def test_a_tcp_port_that_does_not_answer_leaves_time_for_grpc(bookie, routes, over_tcp, accept):
    async def silent(_lane, _stream) -> None:
        await bookie.world.clock.sleep(3600)

    listener = await bookie.net.transport("bookie").listen(f"bookie:{TCP_PORT}", silent)
    connection = await bookie.open(tcp=routes)
    assert sorted(bookie.streams) == sorted(Lane), "everything uses gRPC"
    await connection.close()
    await listener.close(0)
