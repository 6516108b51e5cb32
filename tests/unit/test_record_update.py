"""The update loop of records: a change is made once, or its outcome is reported as unknown."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallybook.core.errors import Conflict, MetadataConflict, MetadataOutcomeUnknown, MetadataUnavailable
from tallybook.metadata.memory import MemoryMetadata
from tallybook.metadata.records.update import RecordUpdater
from tallybook.metadata.store import Ok
from tallybook.runtime.rng import SeededRng
from tallybook.sim.deterministic import World

from ..simulated import simulated
from ..support.fault_script import FaultScript
from ..support.faulty_metadata import FaultyMetadataStore, MetadataFault

NAME = "streams/one"


class Rig:
    """A memory store, seen honestly by ``other`` and through scripted faults by ``updater``."""

    def __init__(self, world: World, *script: tuple[str, MetadataFault], timeout_seconds: float = 20.0) -> None:
        shared = MemoryMetadata(SeededRng(1))
        self.other = shared.client().store
        self.script = FaultScript(script)
        self.store = FaultyMetadataStore(shared.client().store, self.script, world.clock)
        self.updater = RecordUpdater(self.store, world.clock, SeededRng(2), timeout_seconds=timeout_seconds)

    async def value(self) -> bytes | None:
        found = await self.other.read_record(NAME, linearizable=True)
        return None if found is None else found.value


def with_mark(mark: bytes):
    """A transition that adds a mark, once."""
    return lambda found: found if found is not None and mark in found.split() else (found or b"") + b" " + mark


@given(faults=st.lists(st.sampled_from(list(MetadataFault)[:4]), max_size=12), there_before=st.booleans())
@simulated
async def test_a_change_is_made_once_despite_failed_attempts(world: World, *, faults, there_before) -> None:
    rig = Rig(world, *(("write_record", fault) for fault in faults))
    if there_before:
        assert isinstance(await rig.other.write_record(NAME, b" first", None), Ok)
    try:
        record = await rig.updater.update(NAME, with_mark(b"mine"))
    except MetadataUnavailable:
        assert b"mine" not in (await rig.value() or b"")
        return
    except MetadataOutcomeUnknown:
        await world.clock.sleep(60)
        assert (await rig.value() or b"").count(b"mine") <= 1, "though an attempt may land late"
        return
    assert record.value == await rig.value()
    assert record.value.count(b"mine") == 1
    await rig.updater.update(NAME, with_mark(b"mine"))
    assert await rig.value() == record.value


@simulated
async def test_a_change_of_another_client_is_kept(world: World) -> None:
    rig, met = Rig(world), []

    def meets_another(found: bytes | None) -> bytes:
        met.append(found)
        return with_mark(b"mine")(found)

    original = rig.store.read_record

    async def read_then_overtaken(name: str, *, linearizable: bool = False):
        found = await original(name, linearizable=linearizable)
        if not met:
            await rig.other.write_record(NAME, b" theirs", None)
        return found

    rig.store.read_record = read_then_overtaken
    await rig.updater.update(NAME, meets_another)
    assert met == [None, b" theirs"]
    assert await rig.value() == b" theirs mine"


@simulated
async def test_a_refused_change_is_not_made_and_says_why(world: World) -> None:
    rig = Rig(world)

    def refuse(_found: bytes | None) -> bytes:
        raise Conflict("not now")

    with pytest.raises(Conflict, match="not now"):
        await rig.updater.update(NAME, refuse)
    assert await rig.value() is None


@simulated
async def test_a_change_that_is_refused_after_an_attempt_in_doubt_stays_in_doubt(world: World) -> None:
    rig, asked = Rig(world, ("write_record", MetadataFault.UNKNOWN_LOST)), []

    def once(found: bytes | None) -> bytes:
        asked.append(found)
        if len(asked) > 1:
            raise Conflict("too late")
        return b"mine"

    with pytest.raises(MetadataOutcomeUnknown, match="may or may not"):
        await rig.updater.update(NAME, once)


@simulated
async def test_a_record_is_removed_if_it_is_the_one_meant_and_an_answer_that_is_lost_does_not_matter(
    world: World,
) -> None:
    rig = Rig(world, ("delete_record", MetadataFault.UNKNOWN_APPLIED))
    await rig.updater.delete(NAME)
    await rig.updater.update(NAME, with_mark(b"mine"))
    await rig.updater.delete(NAME, lambda value: value == b"another")
    assert await rig.value() == b" mine"
    await rig.updater.delete(NAME, lambda value: value == b" mine")
    assert await rig.value() is None
    assert rig.script.finished


@simulated
async def test_a_caller_that_always_loses_the_race_gets_unchanged_as_outcome(world: World) -> None:
    rig = Rig(world, timeout_seconds=1)
    versions = iter(range(10**6))

    def always_late(found: bytes | None) -> bytes:
        return b"mine" + str(next(versions)).encode()

    original = rig.store.read_record

    async def stale(name: str, *, linearizable: bool = False):
        found = await original(name, linearizable=linearizable)
        version = None if found is None else found.version
        assert isinstance(await rig.other.write_record(NAME, str(next(versions)).encode(), version), Ok)
        return found

    rig.store.read_record = stale
    with pytest.raises(MetadataConflict):
        await rig.updater.update(NAME, always_late)
