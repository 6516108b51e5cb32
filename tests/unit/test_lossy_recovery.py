"""A recovery that accepts loss gives up only entries that no available bookie has."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tallybook.client.recovery.lossy import AcceptedLoss, LossyRecoveryMachine
from tallybook.client.recovery.machine import (
    AwaitStragglers,
    Close,
    Failed,
    FenceMember,
    FindLast,
    FindReplacements,
    ReadEnd,
    ReadMember,
    RecoveryAction,
    WriteBack,
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
from tallybook.metadata.ledger.model import Fragment, LedgerMetadata, begin_recovery, close

METADATA = begin_recovery(LedgerMetadata(1, Quorum(3, 3, 2), (Fragment(0, ("b0", "b1", "b2")),), "token", 0))
PER_BATCH = 10
AWAY = BookieUnavailable("away")
SILENCE = [AWAY, RequestTimeout("late"), Busy("busy"), HandleClosed("closed")]
UNKNOWN, ABSENT, CORRUPT = EntryUnknown("limbo"), EntryAbsent("never held"), EntryCorrupt("damaged")
OTHER = OtherLedger("it holds another ledger of this id")
HELD = FenceAnswer(29, 29)
each_silence = pytest.mark.parametrize("silence", SILENCE, ids=lambda error: type(error).__name__)

NONE: dict[int, int | TallybookError] = dict.fromkeys(range(3), UNKNOWN)
Fences = Mapping[int, FenceAnswer | TallybookError]
Answers = Mapping[int, int | TallybookError]
"""By position: the number of entries with good copies, or the answer to every read."""


def batch(first: int) -> bytes:
    entries = [b"0123456789"] * PER_BATCH
    return encode_batch(1, first, entries, lac=first - 1, ledger_length=(first + PER_BATCH) * 10, written_at_us=0)


def outcome(machine: LossyRecoveryMachine, fences: Fences, answers: Answers) -> Close | Failed:
    """The result of a recovery if the search for the end gets the worst of all possible answers."""
    actions = machine.start()
    while actions:
        action = actions.pop(0)
        match action:
            case FenceMember(position):
                fence = fences[position]
                if isinstance(fence, TallybookError):
                    actions += machine.fence_failed(position, fence)
                else:
                    actions += machine.fenced(position, fence)
            case ReadMember(position, entry_id):
                actions += read(machine, answers[position], position, entry_id)
            case ReadEnd():
                actions += machine.end_failed(DataMissing("no replica has a good copy"))
            case FindLast(position, first, before):
                actions += last_before(machine, answers[position], position, first, before)
            case WriteBack(position, _, entry_id, _):
                actions += machine.added(position, entry_id)
            case FindReplacements():
                actions += machine.replacements_found({})
            case AwaitStragglers(number):
                actions += machine.stragglers_late(number)
            case Close() | Failed():
                return action
    raise AssertionError(f"the machine waits in {machine.phase}")


def read(
    machine: LossyRecoveryMachine, answer: int | TallybookError, position: int, entry_id: int
) -> list[RecoveryAction]:
    if isinstance(answer, TallybookError):
        return machine.read_failed(position, entry_id, answer)
    if entry_id < answer:
        return machine.read(position, entry_id, batch(entry_id // PER_BATCH * PER_BATCH))
    return machine.read_failed(position, entry_id, ABSENT)


def check_failed(found: object, *names: str) -> RecoveryFailed:
    """See that the ledger stays open, and for the sake of which members."""
    assert isinstance(found, Failed)
    assert isinstance(found.error, RecoveryFailed)
    assert {name for name in ("b0", "b1", "b2") if f"{name} (" in found.error.message} >= {*names}
    return found.error


def last_before(
    machine: LossyRecoveryMachine, answer: int | TallybookError, position: int, first: int, before: int
) -> list[RecoveryAction]:
    if isinstance(answer, int):
        last = min(answer, before // PER_BATCH * PER_BATCH) - 1
        return machine.last_found(position, before, last if last >= first else -1, limbo=False)
    if isinstance(answer, EntryUnknown | EntryAbsent | EntryCorrupt):
        return machine.last_found(position, before, -1, limbo=isinstance(answer, EntryUnknown))
    return machine.last_failed(position, before, answer)


@each_silence
def test_a_fenced_member_that_does_not_say_what_it_has_of_the_end_keeps_the_ledger_open(
    silence: TallybookError,
) -> None:
    machine = LossyRecoveryMachine(METADATA)
    for position, fence in enumerate((UNKNOWN, UNKNOWN)):
        assert machine.fence_failed(position, fence) == []
    assert [type(each) for each in machine.fenced(2, HELD)] == [ReadMember] * 3
    machine.read_failed(0, 30, UNKNOWN)
    machine.read_failed(1, 30, UNKNOWN)
    assert machine.read_failed(2, 30, ABSENT) == [ReadEnd(29)]
    assert machine.end_failed(silence) == [ReadMember(position, 29) for position in range(3)]
    machine.read_failed(0, 29, UNKNOWN)
    machine.read_failed(1, 29, UNKNOWN)
    [failed] = machine.read_failed(2, 29, silence)
    assert check_failed(failed, "b2").retriable


@pytest.mark.parametrize("silence", [*SILENCE, MetadataUnavailable("away")], ids=lambda error: type(error).__name__)
def test_a_member_that_may_have_an_entry_and_does_not_say_so_keeps_the_ledger_open(silence: TallybookError) -> None:
    """Whether it is fenced, or was before and is not now, or enough others are and one has a damaged copy."""
    check_failed(outcome(LossyRecoveryMachine(METADATA), {0: UNKNOWN, 1: UNKNOWN, 2: HELD}, {**NONE, 2: silence}))
    reachable = LossyRecoveryMachine(METADATA, reachable={"b2"})
    silent: Fences = {0: UNKNOWN, 1: UNKNOWN, 2: silence}
    check_failed(outcome(reachable, silent, {**NONE, 2: silence}), "b2")
    assert isinstance(outcome(LossyRecoveryMachine(METADATA), silent, NONE), Failed)
    fences: Fences = {0: FenceAnswer(-1, 9), 1: FenceAnswer(-1, -1), 2: silence}
    check_failed(outcome(LossyRecoveryMachine(METADATA), fences, {0: CORRUPT, 1: ABSENT, 2: silence}), "b2")


@pytest.mark.parametrize("answer", [UNKNOWN, ABSENT, CORRUPT], ids=lambda error: type(error).__name__)
def test_where_every_fenced_member_says_that_it_has_no_good_copy_the_ledger_ends_before(answer: TallybookError) -> None:
    found = outcome(LossyRecoveryMachine(METADATA), {0: UNKNOWN, 1: UNKNOWN, 2: HELD}, {0: UNKNOWN, 1: UNKNOWN, 2: 20})
    assert isinstance(found, Close)
    assert (found.last_entry_id, found.length) == (19, 200)
    found = outcome(LossyRecoveryMachine(METADATA), {0: UNKNOWN, 1: UNKNOWN, 2: HELD}, dict.fromkeys(range(3), answer))
    assert isinstance(found, Close)
    assert (found.last_entry_id, found.length) == (-1, 0)


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
        message = check_failed(outcome(LossyRecoveryMachine(METADATA, lost=named), fences, held)).message
        assert {name for name in ("b0", "b1", "b2") if f"{name} (" in message} == {*silent} - {*named}
        assert "bring them back and try again" in message
        assert "--lost" in message
    found = outcome(LossyRecoveryMachine(METADATA, lost=silent), fences, held)
    assert isinstance(found, Close)
    assert found.last_entry_id == max(end - 1 if isinstance(end, int) else -1 for end in held.values())


def test_a_member_of_the_last_fragment_that_holds_another_ledger_of_this_id_has_no_copy() -> None:
    machine = LossyRecoveryMachine(METADATA, reachable={"b0"})
    found = outcome(machine, {0: OTHER, 1: UNKNOWN, 2: FenceAnswer(9, 9)}, {0: OTHER, 1: OTHER, 2: 10})
    assert isinstance(found, Close)
    assert found.last_entry_id == 9
    assert machine.unknown["b0"] == "OtherLedger"


def test_where_the_whole_last_fragment_holds_another_ledger_of_this_id_the_end_is_in_the_one_before() -> None:
    machine = LossyRecoveryMachine(CHANGED)
    for position in range(2):
        assert machine.fence_failed(position, OTHER) == []
    assert machine.fence_failed(2, OTHER) == [ReadMember(position, 30) for position in range(3)]
    for position in range(2):
        assert machine.read_failed(position, 30, OTHER) == []
    assert machine.read_failed(2, 30, OTHER) == [ReadEnd(29)]


def test_what_members_hold_above_the_end_is_reported() -> None:
    machine = LossyRecoveryMachine(METADATA)
    found = outcome(machine, {0: UNKNOWN, 1: UNKNOWN, 2: FenceAnswer(9, 49)}, {0: UNKNOWN, 1: UNKNOWN, 2: 20})
    assert isinstance(found, Close)
    assert found.last_entry_id == 19
    assert machine.last_entries == {"b2": 49}
    closed = close(METADATA, 19, 200)
    told = AcceptedLoss(closed, "failed", machine.confirmed, machine.unknown, machine.last_entries).report
    assert "b2 held entries up to 49: what it holds after entry 19 is given up" in told
    assert not [each for each in AcceptedLoss(closed, "failed", 9, {}, {"b2": 19}).report if "given up" in each]


def asked_for_the_end(machine: LossyRecoveryMachine) -> None:
    """Entry 29 has no good copy, and every member is asked for its last entry before that."""
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
    assert machine.last_found(2, 29, 9, limbo=False) == [ReadMember(position, 9) for position in range(3)]
    assert [type(each) for each in machine.read(2, 9, batch(0))] == [Close]
    machine = LossyRecoveryMachine(METADATA, lost={"b1"})
    asked_for_the_end(machine)
    [end] = machine.last_found(2, 29, -1, limbo=False)
    assert isinstance(end, Close)
    assert (end.last_entry_id, end.length) == (-1, 0), "nothing is held"


@pytest.mark.parametrize("error", [UNKNOWN, *SILENCE], ids=lambda error: type(error).__name__)
def test_a_member_that_is_there_and_does_not_say_what_it_holds_fails_the_recovery_by_name(
    error: TallybookError,
) -> None:
    machine = LossyRecoveryMachine(METADATA, lost={"b1", "b2"})
    asked_for_the_end(machine)
    [failed] = machine.last_failed(2, 29, error)
    check_failed(failed, "b2")


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
    assert machine.end_failed(DataMissing("no replica has it")) == [ReadMember(position, 29) for position in range(3)]
    return machine


@pytest.mark.parametrize("first", [CORRUPT, OTHER], ids=lambda error: type(error).__name__)
def test_where_the_last_fragment_is_empty_the_end_is_looked_for_in_the_one_before(first: TallybookError) -> None:
    machine = asked_for_the_older_end()
    assert machine.confirmed == 29
    machine.read_failed(0, 29, first)
    machine.read_failed(1, 29, ABSENT)
    assert machine.read_failed(2, 29, UNKNOWN) == [FindLast(position, 0, 29) for position in range(3)]
    if first is OTHER:
        machine.last_failed(0, 29, OTHER)
    else:
        machine.last_found(0, 29, -1, limbo=False)
    machine.last_found(1, 29, 19, limbo=False)
    assert machine.last_found(2, 29, -1, limbo=True) == [ReadMember(position, 19) for position in range(3)]
    [end] = machine.read(1, 19, batch(10))
    assert isinstance(end, Close)
    assert (end.last_entry_id, end.length) == (19, 200)
    assert machine.unknown == {"b0": type(first).__name__, "b2": "EntryUnknown"}


@each_silence
def test_confirmed_entries_are_not_given_up_because_a_bookie_does_not_answer(silence: TallybookError) -> None:
    machine = asked_for_the_older_end()
    machine.read_failed(0, 29, silence)
    machine.read_failed(1, 29, ABSENT)
    [failed] = machine.read_failed(2, 29, ABSENT)
    assert "name them as lost" in check_failed(failed, "b0").message


def test_what_a_bookie_holds_that_is_named_as_lost_is_given_up_unless_it_is_there() -> None:
    machine = asked_for_the_older_end("b0", "b1")
    machine.read_failed(0, 29, BookieUnavailable("away"))
    machine.read_failed(1, 29, ABSENT)
    assert [type(each) for each in machine.read_failed(2, 29, ABSENT)] == [FindLast] * 3
    assert machine.unknown == {"b0": "BookieUnavailable"}
    machine = asked_for_the_older_end("b0", "b1")
    machine.read_failed(0, 29, ABSENT)
    machine.read_failed(1, 29, BookieUnavailable("away"))
    [failed] = machine.read_failed(2, 29, ABSENT)
    assert isinstance(failed, Failed), "it was fenced in the last fragment, so it is there"
