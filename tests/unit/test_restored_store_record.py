"""The record that the metadata store was restored from an older copy."""

import pytest

from tallybook.core.errors import DamagedFile, NewerFormat
from tallybook.metadata.memory import MemoryMetadata
from tallybook.metadata.records.restored_store import (
    RECORD,
    RestoreRecord,
    RestoreRecordStore,
    decode_restore_record,
    encode_restore_record,
)
from tallybook.sim.deterministic import World

from ..simulated import simulated

BEHIND = RestoreRecord(10, 21, "b1", 1_000)


@pytest.mark.parametrize("second", [(10, 5), (3, 21), (30, 40)])
@simulated
async def test_findings_of_several_bookies_are_one_and_a_new_one_is_not_approved(
    world: World, *, second: tuple[int, int]
) -> None:
    store = MemoryMetadata(world.rng).client().store
    record = RestoreRecordStore(store, world.clock, world.rng)
    await record.approve()
    assert await record.read() is None, "there is nothing to approve"
    await record.report("b1", 10, 21)
    await record.report("b2", *second)
    found = await record.read()
    assert found is not None
    assert (found.id_counter, found.highest_id) == (min(10, second[0]), max(21, second[1]))
    assert await store.id_counter() == max(21, second[1]) + 1
    await record.approve()
    assert not (await record.read()).pauses
    await record.report("b3", *second)
    assert (await record.read()).pauses


@pytest.mark.parametrize("value", [b"", b"{}", b"[]", b"\xff", encode_restore_record(BEHIND).replace(b"21", b"-1")])
def test_a_record_that_cannot_be_is_damaged(value: bytes) -> None:
    assert decode_restore_record(RECORD, encode_restore_record(BEHIND)) == BEHIND
    with pytest.raises(DamagedFile):
        decode_restore_record(RECORD, value)


def test_a_record_of_a_later_version_is_reported() -> None:
    with pytest.raises(NewerFormat):
        decode_restore_record(RECORD, encode_restore_record(BEHIND).replace(b'"format": 1', b'"format": 2'))
