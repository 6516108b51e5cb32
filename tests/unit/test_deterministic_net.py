"""What the simulated network does to nodes: delay, clog, cut, reset, kill; and that streams keep their promises."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tallybook.core.errors import BookieUnavailable, InvariantViolation, ProtocolViolation
from tallybook.core.limits import MIB
from tallybook.runtime.deterministic import SimNet, Unhandled, World, run_seed
from tallybook.runtime.transport import Lane, MessageStream

Scenario = Callable[[World, SimNet], Awaitable[None]]


def simulate(scenario: Scenario, *, seed: int = 1, **settings: object) -> str:
    """Run ``scenario`` on a network of its own and return the trace digest."""

    async def main(world: World) -> None:
        await scenario(world, SimNet(world.rng, **settings))  # type: ignore[arg-type]

    return run_seed(seed, main, deadline_seconds=1000).digest


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
        self.error: BookieUnavailable | None = None

    async def __call__(self, _lane: Lane, stream: MessageStream) -> None:
        try:
            while (message := await stream.receive()) is not None:
                self.received.append(message)
        except BookieUnavailable as error:
            self.error = error
        finally:
            self.ended.set()


async def send_until_broken(stream: MessageStream, messages: list[bytes]) -> int:
    """How many of ``messages`` the stream took before it said that it is broken."""
    for index, message in enumerate(messages):
        try:
            await stream.send(message)
        except BookieUnavailable:
            return index
        await asyncio.sleep(0.0005)
    return len(messages)


def numbers(count: int) -> list[bytes]:
    return [b"%d" % index for index in range(count)]


def test_a_message_takes_the_links_delay_each_way() -> None:
    async def scenario(world: World, net: SimNet) -> None:
        await net.transport("bookie").listen("bookie", echo)
        stream = await connect(net)
        net.set_delay("client", "bookie", (1.0, 1.0))
        net.set_delay("bookie", "client", (0.25, 0.25))
        before = world.loop.time()
        await stream.send(b"x")
        assert await stream.receive() == b"x"
        assert world.loop.time() - before == pytest.approx(1.25, abs=1e-3)

    simulate(scenario)


def test_messages_keep_their_order_whatever_each_ones_delay() -> None:
    async def scenario(_world: World, net: SimNet) -> None:
        sink = Sink()
        await net.transport("bookie").listen("bookie", sink)
        stream = await connect(net)
        for message in numbers(300):
            await stream.send(message)
        await stream.close()
        await sink.ended.wait()
        assert sink.received == numbers(300)
        assert sink.error is None

    simulate(scenario, delay_seconds=(0.0, 5.0))


def test_addresses_of_real_hosts_become_the_nodes_own() -> None:
    async def scenario(_world: World, net: SimNet) -> None:
        listener = await net.transport("bookie").listen("127.0.0.1:0", echo)
        assert listener.address.startswith("bookie:")
        stream = await connect(net, target=listener.address)
        await stream.send(b"x")
        assert await stream.receive() == b"x"

    simulate(scenario)


def test_a_clog_delays_everything_and_loses_nothing() -> None:
    async def scenario(world: World, net: SimNet) -> None:
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

    simulate(scenario)


def test_a_cut_that_heals_before_it_is_noticed_loses_nothing() -> None:
    async def scenario(_world: World, net: SimNet) -> None:
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

    simulate(scenario)


def test_a_cut_is_one_way() -> None:
    async def scenario(_world: World, net: SimNet) -> None:
        sink = Sink()
        await net.transport("bookie").listen("bookie", sink)
        stream = await connect(net)
        net.cut("bookie", "client")
        await stream.send(b"gets through")
        await asyncio.sleep(1)
        assert sink.received == [b"gets through"]

    simulate(scenario)


@pytest.mark.parametrize("direction", [("client", "bookie"), ("bookie", "client")])
def test_a_lasting_cut_either_way_breaks_the_stream_at_both_ends(direction: tuple[str, str]) -> None:
    async def scenario(world: World, net: SimNet) -> None:
        sink = Sink()
        await net.transport("bookie").listen("bookie", sink)
        stream = await connect(net)
        net.cut(*direction)
        with pytest.raises(BookieUnavailable, match="no sign of life"):
            await stream.receive()
        assert world.loop.time() == pytest.approx(15, abs=0.1)
        await sink.ended.wait()
        assert sink.error is not None
        await asyncio.sleep(0.1)
        assert net.stream_count == 0

    simulate(scenario)


def test_nothing_connects_across_a_cut_and_everything_does_after_it_heals() -> None:
    async def scenario(world: World, net: SimNet) -> None:
        await net.transport("bookie").listen("bookie", echo)
        for direction in (("client", "bookie"), ("bookie", "client")):
            net.cut(*direction)
            before = world.loop.time()
            with pytest.raises(BookieUnavailable, match="within 3 s"):
                await connect(net, seconds=3)
            assert world.loop.time() - before == pytest.approx(3)
            net.heal_all()
        stream = await connect(net)
        await stream.send(b"x")
        assert await stream.receive() == b"x"
        stream.abort()
        await asyncio.sleep(1)
        assert net.stream_count == 0  # those that were given up before they were accepted are gone as well

    simulate(scenario)


def test_a_partition_separates_two_groups_and_neither_within() -> None:
    async def scenario(_world: World, net: SimNet) -> None:
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
                    with pytest.raises(BookieUnavailable):
                        await connect(net, source, target, 1)

    simulate(scenario)


def test_a_reset_loses_some_of_what_was_under_way_but_never_from_the_middle() -> None:
    arrived: list[int] = []

    async def scenario(_world: World, net: SimNet) -> None:
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
        with pytest.raises(BookieUnavailable, match="reset"):
            await stream.receive()
        with pytest.raises(BookieUnavailable):
            await stream.send(b"late")
        await asyncio.sleep(0.1)
        assert net.stream_count == 0

    for seed in range(30):
        simulate(scenario, seed=seed, delay_seconds=(0.01, 0.02))
    assert min(arrived) == 0
    assert max(arrived) > 15
    assert len(set(arrived)) > 5


def test_a_killed_node_breaks_its_streams_and_loses_its_listeners_and_handlers() -> None:
    async def scenario(_world: World, net: SimNet) -> None:
        sink = Sink()
        bookie = net.transport("bookie")
        listener = await bookie.listen("bookie", sink)
        stream = await connect(net)
        net.kill("bookie")
        with pytest.raises(BookieUnavailable, match="bookie died"):
            await stream.receive()
        with pytest.raises(BookieUnavailable, match="refuses"):
            await connect(net)
        for attempt in (bookie.connect("client", Lane.ADD, timeout_seconds=1), bookie.listen("bookie", sink)):
            with pytest.raises(BookieUnavailable, match="was killed"):
                await attempt
        assert sink.ended.is_set()
        await listener.close(0)
        assert net.stream_count == 0

    simulate(scenario)


def test_a_restarted_node_has_nothing_of_its_former_life() -> None:
    async def scenario(_world: World, net: SimNet) -> None:
        old, new = Sink(), Sink()
        await net.transport("bookie").listen("bookie", old)
        stream = await connect(net)
        await stream.send(b"before")
        net.kill("bookie")
        await net.transport("bookie").listen("bookie", new)
        again = await connect(net)
        await again.send(b"after")
        await again.close()
        await new.ended.wait()
        assert new.received == [b"after"]
        with pytest.raises(BookieUnavailable):
            await stream.receive()

    simulate(scenario)


def test_a_silently_dead_node_is_noticed_after_the_keepalive_time() -> None:
    async def scenario(world: World, net: SimNet) -> None:
        await net.transport("bookie").listen("bookie", Sink())
        stream = await connect(net)
        net.kill("bookie", silent=True)
        with pytest.raises(BookieUnavailable, match="within 2 s"):
            await connect(net, seconds=2)
        await stream.send(b"into the void")
        with pytest.raises(BookieUnavailable, match="bookie died"):
            await stream.receive()
        assert world.loop.time() == pytest.approx(15, abs=0.1)
        await net.transport("bookie").listen("bookie", echo)
        (await connect(net)).abort()

    simulate(scenario)


def test_an_unread_stream_takes_a_window_and_no_more() -> None:
    async def scenario(_world: World, net: SimNet) -> None:
        accepted: list[MessageStream] = []

        async def deaf(_lane: Lane, stream: MessageStream) -> None:
            accepted.append(stream)
            await asyncio.sleep(500)

        await net.transport("bookie").listen("bookie", deaf)
        stream = await connect(net)
        for _ in range(4):
            await stream.send(bytes(MIB // 4))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(stream.send(bytes(MIB // 4)), 10)
        for _ in range(4):
            await accepted[0].receive()
        await stream.send(bytes(4 * MIB))  # larger than the window: taken, since nothing else is unread
        assert len(await accepted[0].receive() or b"") == 4 * MIB

    simulate(scenario, window_bytes=MIB)


def test_a_receiver_that_gives_up_waiting_loses_no_message() -> None:
    async def scenario(_world: World, net: SimNet) -> None:
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

    simulate(scenario)


def test_two_receivers_of_one_stream_are_a_defect() -> None:
    async def scenario(_world: World, net: SimNet) -> None:
        await net.transport("bookie").listen("bookie", echo)
        stream = await connect(net)
        results = await asyncio.gather(stream.receive(), stream.receive(), asyncio.sleep(0), return_exceptions=True)
        assert any(isinstance(result, InvariantViolation) for result in results)

    async def with_abort(world: World, net: SimNet) -> None:
        world.loop.call_later(5, net.reset, "client", "bookie")
        await scenario(world, net)

    simulate(with_abort)


def test_a_cancelled_connect_leaves_nothing_behind() -> None:
    for steps in range(1, 12):

        async def scenario(_world: World, net: SimNet, steps: int = steps) -> None:
            await net.transport("bookie").listen("bookie", echo)
            connecting = asyncio.ensure_future(connect(net))
            await asyncio.sleep(steps * 0.00005)
            connecting.cancel()
            await asyncio.wait([connecting])
            if not connecting.cancelled():
                connecting.result().abort()
            await asyncio.sleep(1)
            assert net.stream_count == 0

        simulate(scenario, seed=steps)


def test_a_connect_that_is_cancelled_as_it_succeeds_leaves_nothing_behind() -> None:
    moments: list[float] = []

    async def succeeds(world: World, net: SimNet) -> None:
        await net.transport("bookie").listen("bookie", echo)
        await connect(net)
        moments.append(world.loop.time())

    async def cancelled(world: World, net: SimNet) -> None:
        await net.transport("bookie").listen("bookie", echo)
        connecting = asyncio.ensure_future(connect(net))
        # Right after the answer has arrived, and before whoever waits for it goes on.
        world.loop.call_at(moments[0], lambda: world.loop.call_soon(connecting.cancel))
        await asyncio.wait([connecting])
        assert connecting.cancelled()
        await asyncio.sleep(1)
        assert net.stream_count == 0

    simulate(succeeds)
    simulate(cancelled)


def test_a_handlers_own_error_breaks_its_stream_only_but_a_defect_fails_the_run() -> None:
    async def refuses(_lane: Lane, stream: MessageStream) -> None:
        raise ProtocolViolation("no hello")

    async def broken(_lane: Lane, stream: MessageStream) -> None:
        raise ZeroDivisionError

    async def scenario(_world: World, net: SimNet) -> None:
        await net.transport("bookie").listen("bookie", refuses)
        stream = await connect(net)
        with pytest.raises(BookieUnavailable):
            await stream.receive()

    async def defect(_world: World, net: SimNet) -> None:
        await net.transport("bookie").listen("bookie", broken)
        stream = await connect(net)
        with pytest.raises(BookieUnavailable):
            await stream.receive()

    simulate(scenario)
    with pytest.raises(Unhandled) as caught:
        simulate(defect)
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

    assert simulate(scenario, seed=1) == simulate(scenario, seed=1)
    assert simulate(scenario, seed=1) != simulate(scenario, seed=2)
