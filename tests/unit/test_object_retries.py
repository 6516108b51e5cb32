"""The retry policy of object stores: retries, backoff, rate limit, and deadline."""

import asyncio

import pytest

from tallybook.archive.objects.memory import MemoryObjectStore
from tallybook.archive.objects.retries import ByteRate, RequestRate, RetryingStore, RetryPolicy, RetrySettings
from tallybook.core.errors import ArchiveBusy, ArchiveDenied, ArchiveUnavailable, ObjectMissing, Outcome
from tallybook.runtime.tracing.port import whole
from tallybook.sim.cluster.faulty_objects import FaultyObjectStore, ObjectFault
from tallybook.sim.deterministic import SimClock

from ..simulated import simulated
from ..support.fault_script import FaultScript
from ..support.tracing import MemoryTracer

MIB = 1 << 20
KEY = "ledgers/1"


def stores(world, *steps, **bounds):
    """A store, one with these faults over it, and one with retries over that."""
    memory, script = MemoryObjectStore(world.clock), FaultScript(steps)
    faulty = FaultyObjectStore(memory, script, world.clock)
    patient = RetryingStore(faulty, RetryPolicy(world.clock, world.rng.fork("patience"), RetrySettings(**bounds)))
    return memory, patient, script


@simulated
async def test_what_failed_is_tried_again(world):
    _, store, script = stores(
        world, ("put", ObjectFault.FAILED), ("put", ObjectFault.ANSWER_LOST), ("read", ObjectFault.FAILED),
        ("read", ObjectFault.BUSY), ("info", ObjectFault.FAILED), ("delete", ObjectFault.ANSWER_LOST),
    )  # fmt: skip
    await store.put(KEY, b"abc")
    assert await store.read(KEY, 1, 2) == b"bc"
    assert (await store.info(KEY)).size_bytes == 3
    await store.delete(KEY)
    with pytest.raises(ObjectMissing):
        await store.read(KEY, 0, 1)
    assert script.finished
    assert store.retries.stats == {
        "put_failed": 2, "put_ok": 1, "read_failed": 1, "read_busy": 1, "read_ok": 1, "read_refused": 1,
        "info_failed": 1, "info_ok": 1, "delete_failed": 1, "delete_ok": 1, "bytes_written": 3, "bytes_read": 2,
    }  # fmt: skip


@simulated
async def test_a_read_that_is_traced_is_one_span_with_every_try_that_failed(world):
    _, store, _ = stores(world, ("read", ObjectFault.FAILED), ("read", ObjectFault.BUSY))
    await store.put(KEY, b"abcdef")
    tracer = MemoryTracer()
    with whole(tracer.root("tallybook.archive")):
        await store.read(KEY, 1, 2)
        await store.read_many(KEY, [(0, 1), (3, 2)])
    _, one, many = tracer.spans
    about = {"store": store.url, "object": KEY}
    assert (one.name, one.attributes) == ("objects.read", {**about, "offset": 1, "bytes": 2, "ranges": 1})
    assert (one.events, many.events) == (["try failed"] * 2, [])
    assert many.attributes == {**about, "offset": 0, "bytes": 3, "ranges": 2}
    assert (one.ends, many.ends) == (1, 1)


@pytest.mark.parametrize(
    ("fault", "error"), [(ObjectFault.DENIED, ArchiveDenied), (ObjectFault.MISSING, ObjectMissing)]
)
@simulated
async def test_what_time_does_not_cure_is_raised_at_once(world, *, fault, error):
    _, store, _ = stores(world, ("read", fault))
    with pytest.raises(error):
        await store.read(KEY, 0, 1)
    assert world.clock.monotonic() == 0


@simulated
async def test_a_store_that_never_answers_is_given_up_in_time(world):
    _, store, _ = stores(world, *[("read", ObjectFault.FAILED)] * 1000, give_up_after=60.0)
    with pytest.raises(ArchiveUnavailable) as raised:
        await store.read(KEY, 0, 1)
    assert raised.value.outcome is Outcome.NOT_DONE
    assert 45 < world.clock.monotonic() <= 61
    assert 8 <= store.retries.stats["read_failed"] <= 20


@simulated
async def test_a_request_that_hangs_is_given_up_in_time(world):
    patience = RetryPolicy(world.clock, world.rng, RetrySettings(give_up_after=60.0))
    with pytest.raises(ArchiveUnavailable) as raised:
        await patience.ask("read", lambda: world.clock.sleep(10_000), size=5 * MIB)
    assert raised.value.outcome is Outcome.UNKNOWN
    assert world.clock.monotonic() == pytest.approx(65, abs=0.1)


@simulated
async def test_an_unknown_outcome_is_not_forgotten_over_later_tries(world):
    _, store, _ = stores(world, ("put", ObjectFault.ANSWER_LOST), *[("put", ObjectFault.BUSY)] * 1000)
    with pytest.raises(ArchiveUnavailable) as raised:
        await store.put(KEY, b"x")
    assert raised.value.outcome is Outcome.UNKNOWN
    assert not isinstance(raised.value, ArchiveBusy)


@simulated
async def test_a_finish_is_not_tried_again(world):
    memory, store, _ = stores(world, ("finish", ObjectFault.ANSWER_LOST))
    upload = store.upload(KEY)
    await upload.write(b"abc")
    with pytest.raises(ArchiveUnavailable) as raised:
        await upload.finish()
    assert raised.value.outcome is Outcome.UNKNOWN
    assert await memory.read(KEY, 0, 3) == b"abc"


@simulated
async def test_a_listing_that_breaks_off_goes_on_where_it_was(world):
    memory, store, script = stores(world, *[("list", ObjectFault.FAILED)] * 3)
    every = [f"sets/{number:05}" for number in range(2500)]
    for key in every:
        await memory.put(key, b"x")
    found = []
    async for page in store.list("sets/"):
        found += [info.key for info in page]
        script._steps = [("list", ObjectFault.FAILED), ("list", ObjectFault.BUSY)]
    assert found == every
    assert store.retries.stats["list_failed"] >= 4


@simulated
async def test_a_busy_store_is_asked_half_as_often_and_then_a_little_more_each_second(world):
    settings = RetrySettings(rate_step=5.0, slowest_rate=1.0, unlimited_from=1000.0)
    rate = RequestRate(world.clock, settings)
    for _ in range(300):
        await rate.turn()
        await world.clock.sleep(0.01)
    rate.slow_down(world.clock.monotonic())
    assert rate.limit == pytest.approx(50, abs=2)
    begun, made = world.clock.monotonic(), 0
    while world.clock.monotonic() < begun + 1:
        await rate.turn()
        made += 1
    assert made == pytest.approx(50, abs=3)
    await world.clock.sleep(10)
    await rate.turn()
    assert rate.limit == pytest.approx(105, abs=6)
    await world.clock.sleep(200)
    await rate.turn()
    assert rate.limit == float("inf")


@simulated
async def test_one_storm_halves_the_rate_once_and_many_do_not_end_it(world):
    rate = RequestRate(world.clock, RetrySettings(slowest_rate=2.0))
    await world.clock.sleep(1)
    begun = world.clock.monotonic()
    for _ in range(100):
        await rate.turn()
    await world.clock.sleep(0.1)
    for _ in range(100):
        rate.slow_down(begun)
    assert rate.limit == 50
    await world.clock.sleep(0.1)
    rate.slow_down(world.clock.monotonic())
    assert rate.limit == 25
    for _ in range(50):
        await rate.turn()
        await world.clock.sleep(0.001)
        rate.slow_down(world.clock.monotonic())
    assert rate.limit == 2.0


@pytest.mark.parametrize("chunk", [100_000, MIB])
@pytest.mark.parametrize("busy", [0.0, 0.005])
@simulated
async def test_bytes_pass_at_their_rate_within_five_percent(world, *, chunk, busy):
    rate = ByteRate(world.clock, 10 * MIB)
    begun, passed = world.clock.monotonic(), 0
    while world.clock.monotonic() < begun + 20:
        await rate.take(chunk)
        passed += chunk
        await world.clock.sleep(busy if chunk == MIB else 0)
    assert passed == pytest.approx(200 * MIB, rel=0.05)


@simulated
async def test_late_wake_ups_do_not_lower_the_rate(world):
    late = SimClock(rng=world.rng, noise=3.0)
    rate = ByteRate(late, 10 * MIB)
    begun, passed = late.monotonic(), 0
    while late.monotonic() < begun + 10:
        await rate.take(100_000)
        passed += 100_000
    assert passed == pytest.approx(100 * MIB, rel=0.05)


@simulated
async def test_a_silence_earns_no_burst(world):
    rate = ByteRate(world.clock, 1000)
    await world.clock.sleep(100)
    begun = world.clock.monotonic()
    for _ in range(10):
        await rate.take(100)
    assert world.clock.monotonic() - begun >= 0.75


@simulated
async def test_reads_and_writes_share_the_rate_of_bytes(world):
    _, store, _ = stores(world, bytes_per_second=MIB)
    upload = store.upload(KEY)
    for _ in range(10):
        await upload.write(bytes(MIB))
    await upload.finish()
    await asyncio.gather(*(store.read(KEY, at * MIB, MIB) for at in range(10)))
    assert world.clock.monotonic() == pytest.approx(19, abs=1)


@simulated
async def test_a_try_that_gets_no_answer_has_failed_and_one_that_only_waited_for_its_turn_was_none(world):
    patience = RetryPolicy(world.clock, world.rng.fork("patience"), RetrySettings(give_up_after=5))

    async def hangs():
        await asyncio.Event().wait()

    with pytest.raises(ArchiveUnavailable):
        await patience.ask("read", hangs)
    assert patience.stats == {"read_failed": 1}

    async def busy():
        raise ArchiveBusy

    for _ in range(2):
        with pytest.raises(ArchiveBusy):
            await patience.once("read", busy)
    patience.rate._next_at = world.clock.monotonic() + 60
    with pytest.raises(ArchiveUnavailable):
        await patience.ask("put", hangs)
    assert patience.stats == {"read_failed": 1, "read_busy": 2, "put_failed": 0}
