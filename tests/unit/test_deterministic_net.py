"""The simulated network: delays, clogs, partitions, resets and kills; and the guarantees of streams."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import pytest

from tallybook.core.errors import PeerUnavailable
from tallybook.runtime.transport import MessageStream
from tallybook.sim.deterministic import SimNet, Unhandled, World, run_seed
from tallybook.wire.lanes import Lane

from ..simulated import Parts, on_stage


@asynccontextmanager
async def network(world: World, **settings: object) -> AsyncIterator[Parts]:
    yield {"net": SimNet(world.rng, **settings)}  # type: ignore[arg-type]


on_a_network = partial(on_stage, network, deadline_seconds=1000)


async def echo(_lane: Lane, stream: MessageStream) -> None:
    while (message := await stream.receive()) is not None:
        await stream.send(message)


async def connect(net: SimNet, source: str = "client", target: str = "bookie", seconds: float = 60) -> MessageStream:
    return await net.transport(source).connect(target, Lane.ADD, timeout_seconds=seconds)


class Sink:
    """An acceptor that remembers what it received, and how the stream ended."""

    def __init__(self) -> None:
        self.received: list[bytes] = []
        self.ended = asyncio.Event()
        self.error: PeerUnavailable | None = None

    async def __call__(self, _lane: Lane, stream: MessageStream) -> None:
        try:
            while (message := await stream.receive()) is not None:
                self.received.append(message)
        except PeerUnavailable as error:
            self.error = error
        finally:
            self.ended.set()


async def send_until_broken(stream: MessageStream, messages: list[bytes]) -> int:
    """The number of ``messages`` that the stream accepted before it reported an error."""
    for index, message in enumerate(messages):
        try:
            await stream.send(message)
        except PeerUnavailable:
            return index
        await asyncio.sleep(0.0005)
    return len(messages)


def numbers(count: int) -> list[bytes]:
    return [b"%d" % index for index in range(count)]


@on_a_network()
async def test_a_message_takes_the_links_delay_each_way(world, net):
    await net.transport("bookie").listen("bookie", echo)
    stream = await connect(net)
    net.set_delay("client", "bookie", (1.0, 1.0))
    net.set_delay("bookie", "client", (0.25, 0.25))
    before = world.loop.time()
    await stream.send(b"x")
    assert await stream.receive() == b"x"
    assert world.loop.time() - before == pytest.approx(1.25, abs=1e-3)


@on_a_network()
async def test_a_clog_delays_everything_and_loses_nothing(world, net):
    sink = Sink()
    await net.transport("bookie").listen("bookie", sink)
    stream = await connect(net)
    net.clog("client", "bookie", 5)
    for message in numbers(10):
        await stream.send(message)
    await asyncio.sleep(4.9)
    assert sink.received == []
    await asyncio.sleep(0.2)
    assert sink.received == numbers(10)


@on_a_network()
async def test_a_cut_that_heals_before_it_is_noticed_loses_nothing(world, net):
    await net.transport("bookie").listen("bookie", echo)
    stream = await connect(net)
    net.cut("client", "bookie")
    for message in numbers(10):
        await stream.send(message)
    await asyncio.sleep(10)
    net.heal("client", "bookie")
    for message in numbers(20)[10:]:
        await stream.send(message)
    assert [await stream.receive() for _ in range(20)] == numbers(20)
    await asyncio.sleep(100)
    await stream.send(b"still here")
    assert await stream.receive() == b"still here"


@pytest.mark.parametrize("direction", [("client", "bookie"), ("bookie", "client")])
@on_a_network()
async def test_a_lasting_cut_either_way_breaks_the_stream_at_both_ends(world, net, *, direction):
    sink = Sink()
    await net.transport("bookie").listen("bookie", sink)
    stream = await connect(net)
    net.cut(*direction)
    await stream.send(b"x")
    await asyncio.sleep(1)
    assert sink.received == ([] if direction[0] == "client" else [b"x"]), "a cut is one way"
    with pytest.raises(PeerUnavailable, match="no sign of life"):
        await stream.receive()
    assert world.loop.time() == pytest.approx(15, abs=0.1)
    await sink.ended.wait()
    assert sink.error is not None
    await asyncio.sleep(0.1)
    assert net.stream_count == 0


@on_a_network()
async def test_nothing_connects_across_a_cut_and_everything_does_after_it_heals(world, net):
    await net.transport("bookie").listen("bookie", echo)
    for direction in (("client", "bookie"), ("bookie", "client")):
        net.cut(*direction)
        before = world.loop.time()
        with pytest.raises(PeerUnavailable, match="within 3 s"):
            await connect(net, seconds=3)
        assert world.loop.time() - before == pytest.approx(3)
        net.heal_all()
    stream = await connect(net)
    await stream.send(b"x")
    assert await stream.receive() == b"x"
    stream.abort()
    await asyncio.sleep(1)
    assert net.stream_count == 0  # those that were given up before they were accepted are gone as well


@on_a_network()
async def test_a_partition_separates_two_groups_and_neither_within(world, net):
    names = ["a", "b", "c", "d"]
    for name in names:
        await net.transport(name).listen(name, echo)
    net.partition(names[:2], names[2:])
    for source in names:
        for target in names:
            together = (source in "ab") == (target in "ab")
            if together:
                (await connect(net, source, target, 1)).abort()
            else:
                with pytest.raises(PeerUnavailable):
                    await connect(net, source, target, 1)


def test_a_reset_loses_some_of_what_was_in_flight_but_never_from_the_middle() -> None:
    arrived: list[int] = []

    async def scenario(net: SimNet) -> None:
        sink = Sink()
        await net.transport("bookie").listen("bookie", sink)
        stream = await connect(net)
        for message in numbers(20):
            await stream.send(message)
        net.reset("bookie", "client")
        sent = await send_until_broken(stream, numbers(1000)[20:])
        assert sent < 900
        await sink.ended.wait()
        assert sink.error is not None
        assert sink.received == numbers(len(sink.received))
        assert len(sink.received) <= 20
        arrived.append(len(sink.received))
        with pytest.raises(PeerUnavailable, match="reset"):
            await stream.receive()
        with pytest.raises(PeerUnavailable):
            await stream.send(b"late")
        await asyncio.sleep(0.1)
        assert net.stream_count == 0

    for seed in range(30):
        on_a_network(seed=seed, delay_seconds=(0.01, 0.02))(scenario)()
    assert min(arrived) == 0
    assert max(arrived) > 15
    assert len(set(arrived)) > 5


@on_a_network()
async def test_a_killed_node_breaks_its_streams_and_a_restarted_one_has_nothing_of_its_former_life(world, net):
    sink = Sink()
    bookie = net.transport("bookie")
    listener = await bookie.listen("bookie", sink)
    stream = await connect(net)
    net.kill("bookie")
    with pytest.raises(PeerUnavailable, match="bookie died"):
        await stream.receive()
    with pytest.raises(PeerUnavailable, match="refuses"):
        await connect(net)
    for attempt in (bookie.connect("client", Lane.ADD, timeout_seconds=1), bookie.listen("bookie", sink)):
        with pytest.raises(PeerUnavailable, match="was killed"):
            await attempt
    assert sink.ended.is_set()
    await listener.close(0)
    assert net.stream_count == 0
    again = Sink()
    await net.transport("bookie").listen("bookie", again)
    stream = await connect(net)
    await stream.send(b"after")
    await stream.close()
    await again.ended.wait()
    assert (sink.received, again.received) == ([], [b"after"])


@on_a_network()
async def test_a_silently_dead_node_is_noticed_after_the_keepalive_time(world, net):
    await net.transport("bookie").listen("bookie", Sink())
    stream = await connect(net)
    net.kill("bookie", silent=True)
    with pytest.raises(PeerUnavailable, match="within 2 s"):
        await connect(net, seconds=2)
    await stream.send(b"into the void")
    with pytest.raises(PeerUnavailable, match="bookie died"):
        await stream.receive()
    assert world.loop.time() == pytest.approx(15, abs=0.1)
    await net.transport("bookie").listen("bookie", echo)
    (await connect(net)).abort()


@on_a_network()
async def test_a_receiver_that_gives_up_waiting_loses_no_message(world, net):
    await net.transport("bookie").listen("bookie", echo)
    stream = await connect(net)
    received = []
    for message in numbers(50):
        await stream.send(message)
    while len(received) < 50:
        try:
            async with asyncio.timeout(0.0001):
                received.append(await stream.receive())
        except TimeoutError:
            pass
    assert received == numbers(50)


def test_a_cancelled_connect_leaves_nothing_behind() -> None:
    for steps in range(1, 12):

        async def scenario(net: SimNet, *, steps: int = steps) -> None:
            await net.transport("bookie").listen("bookie", echo)
            connecting = asyncio.ensure_future(connect(net))
            await asyncio.sleep(steps * 0.00005)
            connecting.cancel()
            await asyncio.wait([connecting])
            if not connecting.cancelled():
                connecting.result().abort()
            await asyncio.sleep(1)
            assert net.stream_count == 0

        on_a_network(seed=steps)(scenario)()


def test_a_connect_that_is_cancelled_as_it_succeeds_leaves_nothing_behind() -> None:
    moments: list[float] = []

    async def succeeds(world: World, net: SimNet) -> None:
        await net.transport("bookie").listen("bookie", echo)
        await connect(net)
        moments.append(world.loop.time())

    async def cancelled(world: World, net: SimNet) -> None:
        await net.transport("bookie").listen("bookie", echo)
        connecting = asyncio.ensure_future(connect(net))
        # Right after the answer has arrived, and before its receiver continues.
        world.loop.call_at(moments[0], lambda: world.loop.call_soon(connecting.cancel))
        await asyncio.wait([connecting])
        assert connecting.cancelled()
        await asyncio.sleep(1)
        assert net.stream_count == 0

    on_a_network()(succeeds)()
    on_a_network()(cancelled)()


def test_a_defect_of_a_handler_fails_the_run():
    async def broken(_lane: Lane, stream: MessageStream) -> None:
        raise ZeroDivisionError

    async def scenario(net: SimNet) -> None:
        await net.transport("bookie").listen("bookie", broken)
        stream = await connect(net)
        with pytest.raises(PeerUnavailable):
            await stream.receive()

    with pytest.raises(Unhandled) as caught:
        on_a_network()(scenario)()
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_a_seed_decides_everything_on_the_network() -> None:
    async def scenario(world: World, net: SimNet) -> None:
        await net.transport("bookie").listen("bookie", echo)
        streams = [await connect(net, f"client-{index}") for index in range(5)]

        async def talk(stream: MessageStream) -> None:
            for message in numbers(20):
                await stream.send(message)
                world.note("got", await stream.receive())

        await asyncio.gather(*(talk(stream) for stream in streams))

    def digest(seed: int) -> str:
        return run_seed(seed, lambda world: scenario(world, SimNet(world.rng))).digest

    assert digest(1) == digest(1) != digest(2)
