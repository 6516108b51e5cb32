"""A recovery that accepts loss gives up only what no bookie that is there has."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tallybook.client.recovery.lossy import AcceptedLoss, LossyRecoveryMachine
from tallybook.client.recovery.machine import (
    Action,
    AwaitStragglers,
    Close,
    Failed,
    Fence,
    FindLast,
    FindSpares,
    ReadEnd,
    RecoveryAdd,
    RecoveryRead,
)
from tallybook.core.answers import FenceAnswer
from tallybook.core.batch import encode_batch
from tallybook.core.errors import (
    BookieUnavailable,
    Busy,
    DataMissing,
    EntryAbsent,
    EntryCorrupt,
    EntryUnknown,
    HandleClosed,
    MetadataUnavailable,
    OtherLedger,
    RecoveryFailed,
    RequestTimeout,
    TallybookError,
)
from tallybook.core.quorum import Quorum
from tallybook.metadata.model import Fragment, LedgerMetadata, begin_recovery, close

METADATA = begin_recovery(LedgerMetadata(1, Quorum(3, 3, 2), (Fragment(0, ("b0", "b1", "b2")),), "token", 0))
PER_BATCH = 10
SILENCE = [BookieUnavailable("away"), RequestTimeout("late"), Busy("busy"), HandleClosed("closed")]

Fences = Mapping[int, FenceAnswer | TallybookError]
Answers = Mapping[int, int | TallybookError]
"""By position: the number of entries of which it has good copies, or what it answers to every read."""


def batch(first: int) -> bytes:
    entries = [b"0123456789"] * PER_BATCH
    return encode_batch(1, first, entries, lac=first - 1, ledger_length=(first + PER_BATCH) * 10, written_at_us=0)


def read(machine: LossyRecoveryMachine, answers: Answers, position: int, entry_id: int) -> list[Action]:
    answer = answers[position]
    if isinstance(answer, TallybookError):
        return machine.read_failed(position, entry_id, answer)
    if entry_id < answer:
        return machine.read(position, entry_id, batch(entry_id // PER_BATCH * PER_BATCH))
    return machine.read_failed(position, entry_id, EntryAbsent("not held"))


def outcome(machine: LossyRecoveryMachine, fences: Fences, answers: Answers) -> Close | Failed:
    """What a recovery ends with where the reader of the end is told the worst of all answers, as it may be."""
    actions = machine.start()
    while actions:
        action = actions.pop(0)
        match action:
            case Fence(position):
                fence = fences[position]
                if isinstance(fence, TallybookError):
                    actions += machine.fence_failed(position, fence)
                else:
                    actions += machine.fenced(position, fence)
            case RecoveryRead(position, entry_id):
                actions += read(machine, answers, position, entry_id)
            case ReadEnd():
                actions += machine.end_failed(DataMissing("no replica has a good copy"))
            case FindLast(position, first, before):
                actions += last_before(machine, answers[position], position, first, before)
            case RecoveryAdd(position, _, entry_id, _):
                actions += machine.added(position, entry_id)
            case FindSpares():
                actions += machine.spares_found({})
            case AwaitStragglers(number):
                actions += machine.stragglers_late(number)
            case Close() | Failed():
                return action
    raise AssertionError(f"the machine waits in {machine.phase}")


def last_before(
    machine: LossyRecoveryMachine, answer: int | TallybookError, position: int, first: int, before: int
) -> list[Action]:
    if isinstance(answer, int):
        last = min(answer, before // PER_BATCH * PER_BATCH) - 1
        return machine.last_found(position, before, last if last >= first else -1, limbo=False)
    if isinstance(answer, EntryUnknown | EntryAbsent | EntryCorrupt):
        return machine.last_found(position, before, -1, limbo=isinstance(answer, EntryUnknown))
    return machine.last_failed(position, before, answer)


UNKNOWN, ABSENT, CORRUPT = EntryUnknown("limbo"), EntryAbsent("never held"), EntryCorrupt("damaged")
OTHER = OtherLedger("it holds another ledger of this id")
HELD = FenceAnswer(29, 29)


@pytest.mark.parametrize("silence", SILENCE, ids=lambda error: type(error).__name__)
def test_a_fenced_member_that_does_not_say_what_it_has_of_the_end_keeps_the_ledger_open(
    silence: TallybookError,
) -> None:
    machine = LossyRecoveryMachine(METADATA)
    for position, fence in enumerate((UNKNOWN, UNKNOWN)):
        assert machine.fence_failed(position, fence) == []
    assert [type(each) for each in machine.fenced(2, HELD)] == [RecoveryRead] * 3
    machine.read_failed(0, 30, UNKNOWN)
    machine.read_failed(1, 30, UNKNOWN)
    assert machine.read_failed(2, 30, ABSENT) == [ReadEnd(29)]
    asked = machine.end_failed(silence)
    assert asked == [RecoveryRead(position, 29) for position in range(3)]
    machine.read_failed(0, 29, UNKNOWN)
    machine.read_failed(1, 29, UNKNOWN)
    [failed] = machine.read_failed(2, 29, silence)
    assert isinstance(failed, Failed)
    assert isinstance(failed.error, RecoveryFailed)
    assert failed.error.retriable
    assert "b2" in failed.error.message


@pytest.mark.parametrize("silence", SILENCE, ids=lambda error: type(error).__name__)
def test_a_fenced_member_that_does_not_say_what_it_has_next_keeps_the_ledger_open(silence: TallybookError) -> None:
    found = outcome(
        LossyRecoveryMachine(METADATA), {0: UNKNOWN, 1: UNKNOWN, 2: HELD}, {0: UNKNOWN, 1: UNKNOWN, 2: silence}
    )
    assert isinstance(found, Failed)
    assert isinstance(found.error, RecoveryFailed)


@pytest.mark.parametrize("answer", [UNKNOWN, ABSENT, CORRUPT], ids=lambda error: type(error).__name__)
def test_where_every_fenced_member_says_that_it_has_no_good_copy_the_ledger_ends_before(answer: TallybookError) -> None:
    found = outcome(LossyRecoveryMachine(METADATA), {0: UNKNOWN, 1: UNKNOWN, 2: HELD}, {0: UNKNOWN, 1: UNKNOWN, 2: 20})
    assert isinstance(found, Close)
    assert (found.last_entry_id, found.length) == (19, 200)
    found = outcome(LossyRecoveryMachine(METADATA), {0: UNKNOWN, 1: UNKNOWN, 2: HELD}, dict.fromkeys(range(3), answer))
    assert isinstance(found, Close)
    assert (found.last_entry_id, found.length) == (-1, 0)


AWAY = BookieUnavailable("away")


@pytest.mark.parametrize(
    ("fences", "silent"),
    [
        # No LAC is known, or one that is out of date: what those that are away hold may have been confirmed.
        ({0: AWAY, 1: UNKNOWN, 2: UNKNOWN}, ["b0"]),
        ({0: AWAY, 1: AWAY, 2: UNKNOWN}, ["b0", "b1"]),
        ({0: FenceAnswer(-1, -1), 1: AWAY, 2: UNKNOWN}, ["b1"]),
        ({0: AWAY, 1: AWAY, 2: FenceAnswer(9, 29)}, ["b0", "b1"]),
        ({0: UNKNOWN, 1: AWAY, 2: HELD}, ["b1"]),
    ],
)
def test_what_members_hold_that_do_not_answer_is_given_up_only_where_they_are_named_as_lost(
    fences: Fences, silent: list[str]
) -> None:
    held = {at: answer.last_held + 1 if isinstance(answer, FenceAnswer) else answer for at, answer in fences.items()}
    for named in ([], ["b2"], silent[1:]):
        found = outcome(LossyRecoveryMachine(METADATA, lost=named), fences, held)
        assert isinstance(found, Failed)
        assert isinstance(found.error, RecoveryFailed)
        assert {name for name in ("b0", "b1", "b2") if f"'{name}'" in found.error.message} == {*silent} - {*named}
        assert "bring them back and try again" in found.error.message
        assert "--lost" in found.error.message
    found = outcome(LossyRecoveryMachine(METADATA, lost=silent), fences, held)
    assert isinstance(found, Close)
    assert found.last_entry_id == max(end - 1 if isinstance(end, int) else -1 for end in held.values())


@pytest.mark.parametrize("silence", SILENCE, ids=lambda error: type(error).__name__)
def test_a_member_that_does_not_say_whether_it_has_an_entry_keeps_the_ledger_open_though_enough_are_fenced(
    silence: TallybookError,
) -> None:
    """Of those that are fenced, one holds a damaged copy of an entry that may have been confirmed."""
    fences: Fences = {0: FenceAnswer(-1, 9), 1: FenceAnswer(-1, -1), 2: silence}
    found = outcome(LossyRecoveryMachine(METADATA), fences, {0: CORRUPT, 1: ABSENT, 2: silence})
    assert isinstance(found, Failed)
    assert "'b2'" in found.error.message


def test_without_an_answer_of_any_member_a_ledger_stays_open_though_all_are_named_as_lost() -> None:
    machine = LossyRecoveryMachine(METADATA, lost={"b0", "b1", "b2"})
    found = outcome(machine, dict.fromkeys(range(3), AWAY), dict.fromkeys(range(3), AWAY))
    assert isinstance(found, Failed)
    assert isinstance(found.error, RecoveryFailed)


@pytest.mark.parametrize("silence", SILENCE, ids=lambda error: type(error).__name__)
def test_a_member_that_was_fenced_before_and_is_not_now_keeps_the_ledger_open(silence: TallybookError) -> None:
    machine = LossyRecoveryMachine(METADATA, there={"b2"})
    found = outcome(machine, {0: UNKNOWN, 1: UNKNOWN, 2: silence}, {0: UNKNOWN, 1: UNKNOWN, 2: silence})
    assert isinstance(found, Failed)
    assert isinstance(found.error, RecoveryFailed)
    assert "b2" in found.error.message


@pytest.mark.parametrize("answer", [Busy("busy"), MetadataUnavailable("away")], ids=lambda error: type(error).__name__)
def test_a_member_that_asks_for_patience_is_there(answer: TallybookError) -> None:
    found = outcome(
        LossyRecoveryMachine(METADATA), {0: UNKNOWN, 1: UNKNOWN, 2: answer}, dict.fromkeys(range(3), UNKNOWN)
    )
    assert isinstance(found, Failed)


def test_a_member_of_the_last_fragment_that_holds_another_ledger_of_this_id_has_no_copy() -> None:
    machine = LossyRecoveryMachine(METADATA, there={"b0"})
    found = outcome(machine, {0: OTHER, 1: UNKNOWN, 2: FenceAnswer(9, 9)}, {0: OTHER, 1: OTHER, 2: 10})
    assert isinstance(found, Close)
    assert found.last_entry_id == 9
    assert machine.untold["b0"] == "OtherLedger"


def test_where_the_whole_last_fragment_holds_another_ledger_of_this_id_the_end_is_in_the_one_before() -> None:
    machine = LossyRecoveryMachine(CHANGED)
    for position in range(2):
        assert machine.fence_failed(position, OTHER) == []
    assert machine.fence_failed(2, OTHER) == [RecoveryRead(position, 30) for position in range(3)]
    for position in range(2):
        assert machine.read_failed(position, 30, OTHER) == []
    assert machine.read_failed(2, 30, OTHER) == [ReadEnd(29)]


def test_what_members_hold_above_the_end_is_told() -> None:
    machine = LossyRecoveryMachine(METADATA)
    found = outcome(machine, {0: UNKNOWN, 1: UNKNOWN, 2: FenceAnswer(9, 49)}, {0: UNKNOWN, 1: UNKNOWN, 2: 20})
    assert isinstance(found, Close)
    assert found.last_entry_id == 19
    assert machine.held == {"b2": 49}
    closed = close(METADATA, 19, 200)
    told = AcceptedLoss(closed, "failed", machine.confirmed, machine.untold, machine.held).told
    assert "b2 held entries up to 49: what it holds after entry 19 is given up" in told
    assert not [each for each in AcceptedLoss(closed, "failed", 9, {}, {"b2": 19}).told if "given up" in each]


def asked_for_the_end(machine: LossyRecoveryMachine) -> None:
    """Entry 29 has no good copy, and every member is asked for the last entry before that it holds."""
    machine.fence_failed(0, UNKNOWN)
    machine.fence_failed(1, BookieUnavailable("away"))
    machine.fenced(2, HELD)
    for position, answer in enumerate((UNKNOWN, BookieUnavailable("away"), ABSENT)):
        machine.read_failed(position, 30, answer)
    machine.end_failed(DataMissing("no replica has a good copy"))
    machine.read_failed(0, 29, UNKNOWN)
    machine.read_failed(1, 29, BookieUnavailable("away"))
    assert machine.read_failed(2, 29, ABSENT) == [FindLast(position, 0, 29) for position in range(3)]
    machine.last_found(0, 29, -1, limbo=True)
    assert machine.last_failed(1, 29, BookieUnavailable("away")) == []


def test_the_end_goes_back_to_the_last_entry_that_is_held_at_once() -> None:
    machine = LossyRecoveryMachine(METADATA, lost={"b1"})
    asked_for_the_end(machine)
    assert machine.last_found(2, 29, 9, limbo=False) == [RecoveryRead(position, 9) for position in range(3)]
    assert [type(each) for each in machine.read(2, 9, batch(0))] == [Close]


@pytest.mark.parametrize("error", [UNKNOWN, *SILENCE], ids=lambda error: type(error).__name__)
def test_a_member_that_is_there_and_does_not_say_what_it_holds_fails_the_recovery_by_name(
    error: TallybookError,
) -> None:
    machine = LossyRecoveryMachine(METADATA, lost={"b1", "b2"})
    asked_for_the_end(machine)
    [failed] = machine.last_failed(2, 29, error)
    assert isinstance(failed, Failed)
    assert "'b2'" in failed.error.message


CHANGED = begin_recovery(
    LedgerMetadata(1, Quorum(3, 3, 2), (Fragment(0, ("b0", "b1", "b2")), Fragment(30, ("b3", "b1", "b5"))), "token", 0)
)
"""The writer changed the ensemble at entry 30, and nothing followed."""


def asked_for_the_older_end(*lost: str) -> LossyRecoveryMachine:
    """Nothing is in the last fragment, and no replica gives the end of the one before."""
    machine = LossyRecoveryMachine(CHANGED, lost=lost)
    for position in range(3):
        machine.fenced(position, FenceAnswer(-1, -1))
    for position in range(3):
        actions = machine.read_failed(position, 30, ABSENT)
        if actions:
            assert actions == [ReadEnd(29)]
            break
    assert machine.end_failed(DataMissing("no replica has it")) == [RecoveryRead(position, 29) for position in range(3)]
    return machine


def test_where_the_last_fragment_is_empty_the_end_is_looked_for_in_the_one_before() -> None:
    machine = asked_for_the_older_end()
    assert machine.confirmed == 29
    machine.read_failed(0, 29, CORRUPT)
    machine.read_failed(1, 29, ABSENT)
    assert machine.read_failed(2, 29, UNKNOWN) == [FindLast(position, 0, 29) for position in range(3)]
    machine.last_found(0, 29, 19, limbo=False)
    machine.last_found(1, 29, -1, limbo=False)
    assert machine.last_found(2, 29, -1, limbo=True) == [RecoveryRead(position, 19) for position in range(3)]
    [end] = machine.read(0, 19, batch(10))
    assert isinstance(end, Close)
    assert (end.last_entry_id, end.length) == (19, 200)
    assert machine.untold == {"b0": "EntryCorrupt", "b2": "EntryUnknown"}


def test_a_bookie_of_an_older_fragment_that_holds_another_ledger_of_this_id_has_no_copy() -> None:
    machine = asked_for_the_older_end()
    machine.read_failed(0, 29, OTHER)
    machine.read_failed(1, 29, ABSENT)
    assert machine.read_failed(2, 29, UNKNOWN) == [FindLast(position, 0, 29) for position in range(3)]
    machine.last_failed(0, 29, OTHER)
    machine.last_found(1, 29, 19, limbo=False)
    assert machine.last_found(2, 29, -1, limbo=True) == [RecoveryRead(position, 19) for position in range(3)]
    assert machine.untold == {"b0": "OtherLedger", "b2": "EntryUnknown"}


@pytest.mark.parametrize("error", SILENCE, ids=lambda error: type(error).__name__)
def test_confirmed_entries_are_not_given_up_because_a_bookie_does_not_answer(error: TallybookError) -> None:
    machine = asked_for_the_older_end()
    machine.read_failed(0, 29, error)
    machine.read_failed(1, 29, ABSENT)
    [failed] = machine.read_failed(2, 29, ABSENT)
    assert isinstance(failed, Failed)
    assert "'b0'" in failed.error.message
    assert "name them as lost" in failed.error.message


def test_what_a_bookie_holds_that_is_named_as_lost_is_given_up_unless_it_is_there() -> None:
    machine = asked_for_the_older_end("b0", "b1")
    machine.read_failed(0, 29, BookieUnavailable("away"))
    machine.read_failed(1, 29, ABSENT)
    assert [type(each) for each in machine.read_failed(2, 29, ABSENT)] == [FindLast] * 3
    assert machine.untold == {"b0": "BookieUnavailable"}
    machine = asked_for_the_older_end("b0", "b1")
    machine.read_failed(0, 29, ABSENT)
    machine.read_failed(1, 29, BookieUnavailable("away"))
    [failed] = machine.read_failed(2, 29, ABSENT)
    assert isinstance(failed, Failed), "it was fenced in the last fragment, so it is there"


def test_where_no_member_holds_anything_the_ledger_ends_empty() -> None:
    machine = LossyRecoveryMachine(METADATA, lost={"b1"})
    asked_for_the_end(machine)
    [end] = machine.last_found(2, 29, -1, limbo=False)
    assert isinstance(end, Close)
    assert (end.last_entry_id, end.length) == (-1, 0)
