"""The compare-and-set loop: conflicts are merged, unknown outcomes resolved or reported, nothing is written twice."""

import asyncio
import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallybook.core.errors import (
    DamagedFile,
    InvalidArgument,
    InvariantViolation,
    LedgerClosed,
    LedgerExists,
    LedgerHasWriter,
    MetadataConflict,
    MetadataOutcomeUnknown,
    MetadataUnavailable,
    NoSuchLedger,
)
from tallybook.core.quorum import Quorum
from tallybook.metadata.ledger.model import Fragment, LedgerMetadata, adopt, begin_recovery, close
from tallybook.metadata.ledger_update import LedgerUpdater
from tallybook.metadata.memory import MemoryMetadata
from tallybook.metadata.store import Ok
from tallybook.metadata.write_attempts import MAX_ATTEMPTS
from tallybook.runtime.rng import SeededRng

from ..support.fault_script import FaultScript
from ..support.faulty_metadata import FaultyMetadataStore, MetadataFault, RandomMetadataFaults


class ManualClock:
    """Waiting costs nothing, it only moves the clock; other tasks get their turn."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def wall_us(self) -> int:
        return 0

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.slept.append(seconds)
        await asyncio.sleep(0)


def ledger(ledger_id: int = 7, **fields) -> LedgerMetadata:
    return LedgerMetadata(ledger_id, Quorum(1, 1, 1), (Fragment(0, ("b1",)),), "creator", 0, **fields)


def tagged(tag: str):
    """A transition that adds ``tag`` to the custom metadata. Idempotent."""
    return lambda metadata: replace(metadata, custom={**metadata.custom, tag: b""})


class Rig:
    """A memory store, seen honestly by ``other`` and through scripted faults by ``updater``."""

    def __init__(self, *script: tuple[str, MetadataFault], **options) -> None:
        shared = MemoryMetadata(SeededRng(1))
        self.other = shared.client().store
        self.clock = ManualClock()
        self.script = FaultScript(script)
        self.faulty = FaultyMetadataStore(shared.client().store, self.script, self.clock)
        self.updater = LedgerUpdater(self.faulty, self.clock, SeededRng(2), **options)

    async def create(self, **fields):
        return await self.other.create_ledger(ledger(**fields))

    async def stored(self) -> LedgerMetadata:
        return (await self.other.read_ledger(7)).value

    async def edit(self, transition) -> None:
        """An edit of another client."""
        value, version = await self.other.read_ledger(7)
        assert isinstance(await self.other.update_ledger(transition(value), version), Ok)

    def around(self, operation: str, *, before=None, after=None, times: int = 1) -> list[dict]:
        """Run something before or after the first calls of an operation; gives the named arguments of all calls."""
        original, calls = getattr(self.faulty, operation), []

        async def call(*args, **named):
            calls.append(named)
            if before is not None and len(calls) <= times:
                await before()
            result = await original(*args, **named)
            if after is not None and len(calls) <= times:
                await after()
            return result

        setattr(self.faulty, operation, call)
        return calls


# --- without faults ---------------------------------------------------------------------------------------------------


async def test_a_known_value_saves_the_read():
    rig = Rig(("read_ledger", MetadataFault.UNAVAILABLE))
    created = await rig.create()
    await rig.updater.update(7, begin_recovery, known=created)
    assert not rig.script.finished


async def test_an_outdated_known_value_costs_a_conflict_and_nothing_else():
    rig = Rig()
    known = await rig.create()
    await rig.edit(tagged("theirs"))
    updated = await rig.updater.update(7, tagged("ours"), known=known)
    assert set(updated.value.custom) == {"theirs", "ours"}
    assert updated.value == await rig.stored()


async def test_that_there_is_nothing_to_do_is_never_concluded_from_a_known_value():
    rig = Rig()
    await rig.other.create_ledger(ledger(custom={"tag": b""}))
    known = await rig.other.read_ledger(7)
    await rig.edit(lambda metadata: replace(metadata, custom={}))
    await rig.updater.update(7, tagged("tag"), known=known)
    assert (await rig.stored()).custom == {"tag": b""}


async def test_what_a_transition_refuses_is_not_written():
    rig = Rig()
    created = await rig.other.create_ledger(ledger(writer_token="w1"))
    with pytest.raises(LedgerHasWriter):
        await rig.updater.update(7, lambda metadata: adopt(metadata, "w2"))
    assert await rig.other.read_ledger(7) == created


async def test_a_transition_that_changes_confirmed_entries_is_a_defect():
    rig = Rig()
    await rig.other.create_ledger(close(ledger(), 4, 9))
    with pytest.raises(InvariantViolation):
        await rig.updater.update(7, lambda metadata: replace(metadata, length=10))
    assert (await rig.stored()).length == 9


async def test_a_ledger_that_is_not_there_is_neither_updated_nor_deleted():
    with pytest.raises(NoSuchLedger):
        await Rig().updater.update(7, begin_recovery)
    with pytest.raises(NoSuchLedger):
        await Rig().updater.delete(7)


async def test_endless_conflicts_end_in_a_typed_error_after_jittered_pauses():
    rig = Rig()
    await rig.create()
    numbers = itertools.count()
    calls = rig.around("update_ledger", before=lambda: rig.edit(tagged(f"theirs {next(numbers)}")), times=MAX_ATTEMPTS)
    with pytest.raises(MetadataConflict):
        await rig.updater.update(7, tagged("ours"))
    assert len(calls) == MAX_ATTEMPTS
    assert "ours" not in (await rig.stored()).custom
    assert len(set(rig.clock.slept)) == MAX_ATTEMPTS - 1
    assert max(rig.clock.slept) <= 0.25


# --- unknown outcomes -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fault", [None, MetadataFault.UNKNOWN_APPLIED, MetadataFault.UNKNOWN_LOST, MetadataFault.UNKNOWN_LATE]
)
async def test_c07_an_edit_is_made_once_for_any_outcome_of_its_first_write(fault):
    rig = Rig(*[("update_ledger", fault)] if fault else [])
    created = await rig.create()
    reads = rig.around("read_ledger")
    updated = await rig.updater.update(7, begin_recovery)
    assert updated == (begin_recovery(created.value), created.version + 1)
    assert all(read["linearizable"] for read in reads)
    assert await rig.updater.update(7, begin_recovery) == updated, "what is there already is not written again"
    await rig.faulty.land_late_writes()
    assert updated == await rig.other.read_ledger(7)


async def test_c07_a_close_whose_answer_was_lost_is_not_taken_for_that_of_another_client():
    rig = Rig(("update_ledger", MetadataFault.UNKNOWN_APPLIED))
    await rig.create()
    closed = await rig.updater.update(7, lambda metadata: close(metadata, 9, 100))
    assert (closed.value.last_entry_id, closed.value.length) == (9, 100)


async def test_an_unknown_outcome_that_cannot_be_read_back_is_reported_as_unknown():
    rig = Rig(("update_ledger", MetadataFault.UNKNOWN_APPLIED), ("read_ledger", MetadataFault.UNAVAILABLE))
    created = await rig.create()
    with pytest.raises(MetadataOutcomeUnknown, match=r"ledger 7 may or may not take effect: .*applied"):
        await rig.updater.update(7, begin_recovery, known=created)


@pytest.mark.parametrize("fault", [MetadataFault.UNKNOWN_LOST, MetadataFault.UNKNOWN_LATE])
async def test_c07_a_transition_that_refuses_a_second_time_does_not_settle_the_first_write(fault):
    """The value was legal when it was first written, and what goes into it has grown since."""
    rig = Rig(("update_ledger", fault))
    await rig.create()
    tries = []

    def grows(metadata: LedgerMetadata) -> LedgerMetadata:
        tries.append(metadata)
        if len(tries) > 1:
            raise InvalidArgument("too large by now")
        return begin_recovery(metadata)

    with pytest.raises(MetadataOutcomeUnknown):
        await rig.updater.update(7, grows)


async def test_a_lost_write_over_a_version_that_has_moved_on_is_settled():
    rig = Rig(("update_ledger", MetadataFault.UNKNOWN_LOST), ("update_ledger", MetadataFault.UNAVAILABLE))
    await rig.create()
    rig.around("update_ledger", after=lambda: rig.edit(tagged("theirs")))
    with pytest.raises(MetadataUnavailable):
        await rig.updater.update(7, begin_recovery)


async def test_a_store_that_does_not_answer_at_all_has_done_nothing():
    for operation in ("read_ledger", "update_ledger"):
        rig = Rig((operation, MetadataFault.UNAVAILABLE))
        created = await rig.create()
        with pytest.raises(MetadataUnavailable):
            await rig.updater.update(7, begin_recovery)
        assert await rig.other.read_ledger(7) == created


@pytest.mark.parametrize(
    ("faults", "deadline", "finished"),
    [
        ([MetadataFault.UNKNOWN_LOST] * MAX_ATTEMPTS, {}, True),
        (
            [MetadataFault.UNKNOWN_LOST, MetadataFault.UNAVAILABLE],
            {},
            True,
        ),  # a second write that is refused settles nothing
        ([MetadataFault.UNKNOWN_LOST] * MAX_ATTEMPTS, {"timeout_seconds": 0.05}, False),  # no attempt begins after it
    ],
)
async def test_outcomes_that_stay_unknown_end_as_unknown_not_as_a_conflict(faults, deadline, finished):
    rig = Rig(*[("update_ledger", fault) for fault in faults], **deadline)
    await rig.create()
    with pytest.raises(MetadataOutcomeUnknown):
        await rig.updater.update(7, begin_recovery)
    assert rig.script.finished is finished


async def test_a_ledger_deleted_after_an_unknown_outcome_is_gone_for_certain():
    rig = Rig(("update_ledger", MetadataFault.UNKNOWN_LOST))
    created = await rig.create()
    rig.around("update_ledger", after=lambda: rig.other.delete_ledger(7, created.version))
    with pytest.raises(NoSuchLedger):
        await rig.updater.update(7, begin_recovery)


async def test_a_close_that_lost_against_another_one_says_so():
    rig = Rig(("update_ledger", MetadataFault.UNKNOWN_LOST))
    await rig.create()
    rig.around("update_ledger", after=lambda: rig.edit(lambda value: close(value, 3, 30)))
    with pytest.raises(LedgerClosed, match="closed at entry 3"):
        await rig.updater.update(7, lambda metadata: close(metadata, 9, 100))


# --- create, delete ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fault", [MetadataFault.UNKNOWN_APPLIED, MetadataFault.UNKNOWN_LOST, MetadataFault.UNKNOWN_LATE]
)
async def test_a_creation_is_repeated_until_its_outcome_is_known(fault):
    rig = Rig(("create_ledger", fault))
    created = await rig.updater.create(ledger())
    await rig.faulty.land_late_writes()
    assert await rig.other.read_ledger(7) == created


async def test_a_creation_by_another_client_is_refused():
    rig = Rig(("create_ledger", MetadataFault.UNKNOWN_LOST))
    await rig.other.create_ledger(replace(ledger(), creator_token="theirs"))
    with pytest.raises(LedgerExists):
        await rig.updater.create(ledger())


async def test_a_creation_that_stays_unknown_says_so():
    rig = Rig(("create_ledger", MetadataFault.UNKNOWN_APPLIED), ("create_ledger", MetadataFault.UNAVAILABLE))
    with pytest.raises(MetadataOutcomeUnknown):
        await rig.updater.create(ledger())
    rig = Rig(("create_ledger", MetadataFault.UNAVAILABLE))
    with pytest.raises(MetadataUnavailable):
        await rig.updater.create(ledger())


@pytest.mark.parametrize(
    "fault", [MetadataFault.UNKNOWN_APPLIED, MetadataFault.UNKNOWN_LOST, MetadataFault.UNKNOWN_LATE]
)
async def test_r09_a_deletion_is_repeated_until_the_ledger_is_gone(fault):
    rig = Rig(("delete_ledger", fault))
    await rig.create()
    await rig.updater.delete(7)
    with pytest.raises(NoSuchLedger):
        await rig.other.read_ledger(7)


async def test_a_ledger_that_cannot_be_read_again_leaves_its_deletion_in_doubt():
    rig = Rig(("delete_ledger", MetadataFault.UNKNOWN_LATE))
    await rig.create()

    async def damaged() -> None:
        if len(reads) > 1:
            raise DamagedFile("not to be decoded")

    reads = rig.around("read_ledger", before=damaged, times=2)
    with pytest.raises(MetadataOutcomeUnknown):
        await rig.updater.delete(7)


async def test_a_deletion_goes_on_over_other_peoples_edits():
    rig = Rig()
    await rig.create()
    rig.around("delete_ledger", before=lambda: rig.edit(begin_recovery))
    await rig.updater.delete(7)
    with pytest.raises(NoSuchLedger):
        await rig.other.read_ledger(7)


# --- many at once, all kinds of faults --------------------------------------------------------------------------------

RATES = {
    MetadataFault.UNKNOWN_APPLIED: 0.15,
    MetadataFault.UNKNOWN_LOST: 0.15,
    MetadataFault.UNKNOWN_LATE: 0.15,
    MetadataFault.UNAVAILABLE: 0.03,
    MetadataFault.STALE: 0.3,
}


@given(seed=st.integers(0, 2**32))
def test_r10_every_edit_that_was_reported_done_is_there_and_every_refused_one_is_not(seed, run):
    async def scenario() -> None:
        shared = MemoryMetadata(SeededRng(seed))
        honest = shared.client().store
        await honest.create_ledger(ledger())
        done, undone, unknown = set(), set(), set()
        faulty = []

        async def edit_many(name: str) -> None:
            clock, rng = ManualClock(), SeededRng(f"{seed}/{name}")
            store = FaultyMetadataStore(shared.client().store, RandomMetadataFaults(rng.fork("faults"), RATES), clock)
            faulty.append(store)
            updater = LedgerUpdater(store, clock, rng)
            for n in range(6):
                tag = f"{name} {n}"
                try:
                    await updater.update(7, tagged(tag))
                except MetadataOutcomeUnknown:
                    unknown.add(tag)
                except (MetadataUnavailable, MetadataConflict):
                    undone.add(tag)
                else:
                    done.add(tag)

        await asyncio.gather(*(edit_many(name) for name in "abc"))
        for store in faulty:
            await store.land_late_writes()
        present = set((await honest.read_ledger(7)).value.custom)
        assert done <= present
        assert not undone & present
        assert present - done <= unknown

    run(scenario())
