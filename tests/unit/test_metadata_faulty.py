"""The faulty metadata store: writes that are lost, applied or late, and stale reads."""

import asyncio

import pytest

from tallybook.core.errors import MetadataOutcomeUnknown, MetadataUnavailable, NoSuchLedger
from tallybook.core.quorum import Quorum
from tallybook.metadata.ledger.model import Fragment, LedgerMetadata, begin_recovery
from tallybook.metadata.memory import MemoryMetadata
from tallybook.metadata.store import MetadataRecord, RecordPage, Unknown
from tallybook.runtime.rng import SeededRng

from ..simulated import simulated
from ..support.fault_script import FaultScript
from ..support.faulty_metadata import FaultyMetadataStore, MetadataFault, RandomMetadataFaults


class NoClock:
    """Nothing here may wait."""

    async def sleep(self, seconds: float) -> None:
        raise AssertionError("waited")


def ledger(ledger_id: int = 7) -> LedgerMetadata:
    return LedgerMetadata(ledger_id, Quorum(1, 1, 1), (Fragment(0, ("b1",)),), "creator", 0)


def rig(*script: tuple[str, MetadataFault]) -> tuple[FaultyMetadataStore, object, FaultScript]:
    """A faulty client, an honest one of the same store, and the script."""
    shared, faults = MemoryMetadata(SeededRng(1)), FaultScript(script)
    return FaultyMetadataStore(shared.client().store, faults, NoClock()), shared.client().store, faults


@pytest.mark.parametrize(
    ("fault", "applied"), [(MetadataFault.UNKNOWN_APPLIED, True), (MetadataFault.UNKNOWN_LOST, False)]
)
async def test_a_write_of_unknown_outcome_is_applied_or_lost_as_scripted(fault, applied):
    faulty, honest, _ = rig(*[(name, fault) for name in ("create_ledger", "update_ledger", "write_cookie")])
    with pytest.raises(MetadataOutcomeUnknown):
        await faulty.create_ledger(ledger())
    assert ((await honest.list_ledgers()).ledger_ids == (7,)) is applied
    created = await honest.create_ledger(ledger())
    assert isinstance(await faulty.update_ledger(begin_recovery(ledger()), created.version), Unknown)
    assert ((await honest.read_ledger(7)).value != ledger()) is applied
    with pytest.raises(MetadataOutcomeUnknown):
        await faulty.write_cookie("b1", b"cookie")
    assert (await honest.read_cookie("b1") == b"cookie") is applied


async def test_a_late_write_lands_before_the_next_operation_but_one():
    faulty, honest, _ = rig(("delete_ledger", MetadataFault.UNKNOWN_LATE))
    created = await faulty.create_ledger(ledger())
    assert isinstance(await faulty.delete_ledger(7, created.version), Unknown)
    assert await faulty.read_ledger(7) == created == await honest.read_ledger(7)
    with pytest.raises(NoSuchLedger):
        await faulty.read_ledger(7)


async def test_a_stale_read_is_older_but_never_older_than_the_last_one_nor_than_an_own_write():
    faulty, honest, _ = rig(*[("read_ledger", MetadataFault.STALE)] * 3)
    first = await honest.create_ledger(ledger())
    assert await faulty.read_ledger(7) == first
    await honest.update_ledger(begin_recovery(ledger()), first.version)
    assert await faulty.read_ledger(7) == first
    newest = await faulty.read_ledger(7, linearizable=True)
    assert newest == await honest.read_ledger(7) != first
    faulty, honest, _ = rig(("update_ledger", MetadataFault.UNKNOWN_LOST), ("read_ledger", MetadataFault.STALE))
    await honest.create_ledger(ledger())
    await faulty.read_ledger(7)
    await honest.update_ledger(begin_recovery(ledger()), first.version)
    await faulty.update_ledger(ledger(), first.version)
    assert (await faulty.read_ledger(7)).value == begin_recovery(ledger())


async def test_records_suffer_what_ledgers_do():
    faulty, honest, faults = rig(
        ("write_record", MetadataFault.UNKNOWN_APPLIED),
        ("write_record", MetadataFault.UNKNOWN_LATE),
        ("read_record", MetadataFault.STALE),
        ("delete_record", MetadataFault.UNKNOWN_LOST),
        ("list_records", MetadataFault.PARTIAL),
        ("read_record", MetadataFault.UNAVAILABLE),
    )
    assert isinstance(await faulty.write_record("a", b"1", None), Unknown)
    assert await faulty.read_record("a") == MetadataRecord(b"1", 1)
    assert isinstance(await faulty.write_record("a", b"2", 1), Unknown)
    assert await faulty.read_record("a") == MetadataRecord(b"1", 1)
    assert await faulty.read_record("a", linearizable=True) == MetadataRecord(b"2", 2)
    await honest.write_record("a", b"3", 2)
    assert await faulty.read_record("a", linearizable=True) == MetadataRecord(b"3", 3)
    assert isinstance(await faulty.delete_record("a", 3), Unknown)
    await honest.write_record("b", b"", None)
    assert await faulty.list_records() == RecordPage(("a",), complete=False)
    with pytest.raises(MetadataUnavailable):
        await faulty.read_record("a")
    assert await faulty.read_record("a") == MetadataRecord(b"3", 3)
    assert faults.finished


@simulated
async def test_r08_a_delayed_watch_fires_late_but_fires_even_after_a_cancelled_wait(world) -> None:
    shared = MemoryMetadata(SeededRng(1))
    faulty = FaultyMetadataStore(
        shared.client().store,
        FaultScript([("changed", MetadataFault.DELAYED)]),
        world.clock,
        watch_delay_seconds=5,
    )
    watch = faulty.watch_ledger(7)
    await shared.client().store.create_ledger(ledger())
    before = world.clock.monotonic()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(2):
            await watch.changed()
    await watch.changed()
    assert world.clock.monotonic() == before + 2


def test_random_faults_are_the_same_for_the_same_seed_and_fit_their_operation():
    rates = dict.fromkeys(MetadataFault, 0.3)
    operations = ["read_ledger", "update_ledger", "list_ledgers", "changed", "next_ledger_id"] * 200

    def drawn(seed: int) -> list[MetadataFault | None]:
        faults = RandomMetadataFaults(SeededRng(seed), rates)
        return [faults.next(operation) for operation in operations]

    assert drawn(1) == drawn(1) != drawn(2)
    by_operation = {}
    for operation, fault in zip(operations, drawn(3), strict=True):
        by_operation.setdefault(operation, set()).add(fault)
    assert by_operation == {
        "read_ledger": {None, MetadataFault.UNAVAILABLE, MetadataFault.STALE},
        "update_ledger": {
            None,
            MetadataFault.UNAVAILABLE,
            MetadataFault.UNKNOWN_APPLIED,
            MetadataFault.UNKNOWN_LOST,
            MetadataFault.UNKNOWN_LATE,
        },
        "list_ledgers": {None, MetadataFault.UNAVAILABLE, MetadataFault.PARTIAL},
        "changed": {None, MetadataFault.DELAYED},
        "next_ledger_id": {None, MetadataFault.UNAVAILABLE},
    }
