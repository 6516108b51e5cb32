"""The faulty object store fails exactly as its script says."""

import pytest

from tallybook.archive.objects.memory import MemoryObjectStore
from tallybook.core.errors import ArchiveBusy, ArchiveDenied, ArchiveUnavailable, ObjectMissing, Outcome
from tallybook.sim.cluster.faulty_objects import OPERATIONS, FaultyObjectStore, ObjectFault, RandomObjectFaults, fits

from ..simulated import simulated
from ..support.fault_script import FaultScript

KEY = "ledgers/1"
TEXT = b"0123456789"


async def stores(world, *steps):
    """A store, one with these faults over it, and their script."""
    store, script = MemoryObjectStore(world.clock), FaultScript(steps)
    await store.put(KEY, TEXT)
    return store, FaultyObjectStore(store, script, world.clock, timeout_seconds=7.0), script


@pytest.mark.parametrize(
    ("fault", "error", "outcome"),
    [
        (ObjectFault.FAILED, ArchiveUnavailable, Outcome.UNKNOWN),
        (ObjectFault.TIMED_OUT, ArchiveUnavailable, Outcome.UNKNOWN),
        (ObjectFault.BUSY, ArchiveBusy, Outcome.NOT_DONE),
        (ObjectFault.DENIED, ArchiveDenied, Outcome.NOT_DONE),
    ],
)
@simulated
async def test_a_put_that_fails_before_its_effect_has_none(world, *, fault, error, outcome):
    store, faulty, script = await stores(world, ("put", fault))
    with pytest.raises(error) as raised:
        await faulty.put("ledgers/2", TEXT)
    assert raised.value.outcome is outcome
    assert world.clock.monotonic() == (7.0 if fault is ObjectFault.TIMED_OUT else 0)
    with pytest.raises(ObjectMissing):
        await store.info("ledgers/2")
    assert script.finished


@simulated
async def test_an_answer_can_be_lost_after_the_effect(world):
    store, faulty, script = await stores(world, ("put", ObjectFault.ANSWER_LOST), ("delete", ObjectFault.ANSWER_LOST))
    for call in (faulty.put("ledgers/2", TEXT), faulty.delete(KEY)):
        with pytest.raises(ArchiveUnavailable) as raised:
            await call
        assert raised.value.outcome is Outcome.UNKNOWN
    assert [info.key async for page in store.list() for info in page] == ["ledgers/2"]
    assert script.finished


@pytest.mark.parametrize("step", ["finish", "abort"])
@simulated
async def test_an_upload_can_be_left_behind(world, *, step):
    store, faulty, script = await stores(world, (step, ObjectFault.LEFT_BEHIND))
    upload = faulty.upload("ledgers/2")
    await upload.write(TEXT)
    if step == "finish":
        with pytest.raises(ArchiveUnavailable):
            await upload.finish()
    await upload.abort()
    assert [found.key for found in await faulty.unfinished_uploads()] == ["ledgers/2"]
    with pytest.raises(ObjectMissing):
        await store.info("ledgers/2")
    assert script.finished


@simulated
async def test_the_dice_strike_every_operation_with_what_fits_it_and_then_stop(world):
    faults = RandomObjectFaults(world.rng, world.clock, dict.fromkeys(ObjectFault, 0.1), ends_at=100.0)
    struck = {operation: {faults.next(operation) for _ in range(2000)} - {None} for operation in OPERATIONS}
    for operation, found in struck.items():
        assert found == {fault for fault in ObjectFault if fits(operation, fault)}, operation
    await world.clock.sleep(100)
    assert {faults.next("put") for _ in range(100)} == {None}


@simulated
async def test_in_a_storm_everything_is_busy(world):
    faults = RandomObjectFaults(world.rng, world.clock, {}, storm=1.0, storm_seconds=5.0)
    assert {faults.next("read") for _ in range(10)} == {ObjectFault.BUSY}
    faults.storm = 0.0
    assert faults.next("write") is ObjectFault.BUSY
    assert faults.next("abort") is None
    await world.clock.sleep(5)
    assert faults.next("read") is None
