"""The state machine of ledger metadata: the effect of each transition, refused ones, and invariants."""

from collections.abc import Iterable
from dataclasses import replace
from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tallybook.core.errors import InvalidArgument, InvariantViolation, LedgerClosed, LedgerFenced, LedgerHasWriter
from tallybook.core.ids import MAX_ID
from tallybook.core.quorum import Quorum
from tallybook.metadata.codec import decode_ledger, encode_ledger
from tallybook.metadata.ledger.model import (
    DigestType,
    Fragment,
    LedgerMetadata,
    LedgerState,
    MissedRange,
    adopt,
    begin_recovery,
    change_ensemble,
    check_succession,
    close,
    of_members,
    record_missed,
)

ENSEMBLE = ("b1", "b2", "b3")


def ledger(**fields) -> LedgerMetadata:
    given = {"fragments": (Fragment(0, ENSEMBLE),), **fields}
    return LedgerMetadata(7, Quorum(3, 3, 2), creator_token="creator", created_at_ms=1_700_000_000_000, **given)


THREE_FRAGMENTS = (Fragment(0, ENSEMBLE), Fragment(10, ("b1", "b4", "b3")), Fragment(25, ("b5", "b4", "b3")))
OTHERS = ("b1", "b2", "b9")


# --- what a value must be ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fragments", "complaint"),
    [
        ((), "must start at entry 0"),
        ((Fragment(1, ENSEMBLE),), "must start at entry 0"),
        ((Fragment(0, ENSEMBLE), Fragment(0, ENSEMBLE)), "strictly increase"),
        ((Fragment(0, ENSEMBLE), Fragment(9, ENSEMBLE), Fragment(8, ENSEMBLE)), "strictly increase"),
        ((Fragment(0, ("b1", "b2")),), "3 different bookies"),
        ((Fragment(0, ("b1", "b2", "b1")),), "3 different bookies"),
        ((Fragment(0, (*ENSEMBLE, "b4")),), "3 different bookies"),
    ],
)
def test_fragments_that_do_not_cover_the_ledger_are_refused(fragments, complaint):
    with pytest.raises(InvalidArgument, match=complaint):
        ledger(fragments=fragments)


def test_custom_metadata_is_limited_by_its_bytes_not_its_characters():
    assert ledger(custom={"k" * 36_000: bytes(29_536)})
    with pytest.raises(InvalidArgument, match="65537 bytes"):
        ledger(custom={"k" * 36_000: bytes(29_537)})
    with pytest.raises(InvalidArgument, match="72000 bytes"):
        ledger(custom={"ü" * 36_000: b""})


@pytest.mark.parametrize("ledger_id", [-1, MAX_ID + 1, True, "7"])
def test_an_id_that_names_no_ledger_is_refused(ledger_id):
    with pytest.raises(InvalidArgument):
        replace(ledger(), ledger_id=ledger_id)


# --- ensemble members -------------------------------------------------------------------------------------------------


def test_an_entry_belongs_to_the_fragment_that_covers_it():
    open_ledger = ledger(fragments=THREE_FRAGMENTS)
    for entry_id, index in ((0, 0), (9, 0), (10, 1), (24, 1), (25, 2), (MAX_ID, 2)):
        assert open_ledger.fragment_of(entry_id) is THREE_FRAGMENTS[index]
    assert open_ledger.last_fragment is THREE_FRAGMENTS[2]


def test_a_fragment_ends_where_the_next_begins_and_the_last_one_with_the_ledger():
    open_ledger = ledger(fragments=THREE_FRAGMENTS)
    assert [open_ledger.fragment_end(fragment) for fragment in THREE_FRAGMENTS] == [9, 24, MAX_ID]
    closed = close(open_ledger, 30, 1000)
    assert [closed.fragment_end(fragment) for fragment in THREE_FRAGMENTS] == [9, 24, 30]


def test_the_write_set_is_named_by_the_fragment_of_the_entry():
    striped = replace(
        ledger(), quorum=Quorum(3, 2, 2, 5), fragments=(Fragment(0, ENSEMBLE), Fragment(5, ("b7", "b8", "b9")))
    )
    assert striped.bookies_of(4) == ("b1", "b2")
    assert striped.bookies_of(5) == ("b8", "b9")
    assert striped.bookies_of(10) == ("b9", "b7")


# --- owner ------------------------------------------------------------------------------------------------------------


def test_a_ledger_that_is_open_and_was_never_owned_is_adopted():
    assert adopt(ledger(), "mine") == replace(ledger(), writer_token="mine")
    for taken in (ledger(writer_token="yours"), ledger(writer_token="")):
        with pytest.raises(LedgerHasWriter):
            adopt(taken, "mine")
    with pytest.raises(LedgerFenced):
        adopt(begin_recovery(ledger()), "mine")
    with pytest.raises(LedgerClosed):
        adopt(close(ledger(writer_token="mine"), 1, 1), "mine")


# --- recovery, close --------------------------------------------------------------------------------------------------


def test_a_transition_that_was_made_changes_nothing_more():
    owned, recovering, closed = ledger(writer_token="mine"), begin_recovery(ledger()), close(ledger(), 9, 100)
    changed = change_ensemble(ledger(), ledger().last_fragment, 10, OTHERS)
    assert adopt(owned, "mine") == owned
    assert begin_recovery(recovering) is recovering
    assert begin_recovery(closed) is closed
    assert close(closed, 9, 100) is closed
    assert change_ensemble(changed, ledger().last_fragment, 10, OTHERS) is changed


def test_an_end_before_the_last_fragment_is_possible_only_without_it():
    shorter = close(ledger(fragments=THREE_FRAGMENTS), 23, 50, fragments=THREE_FRAGMENTS[:2])
    assert (shorter.last_entry_id, shorter.fragments) == (23, THREE_FRAGMENTS[:2])


@pytest.mark.parametrize("end", [(-2, 0), (MAX_ID + 1, 5), (26, -1), (-1, 1), (23, 50)])
def test_an_end_that_cannot_be_is_refused(end):
    with pytest.raises(InvalidArgument):
        close(ledger(fragments=THREE_FRAGMENTS), *end)


def test_missed_ranges_of_one_bookie_that_meet_become_one_and_end_with_the_close():
    missed = (
        MissedRange("b3", 7, 9), MissedRange("b1", 10, 12), MissedRange("b3", 0, 4), MissedRange("b1", 5, 10),
        MissedRange("b3", 5, 5), MissedRange("b1", 13, None), MissedRange("b1", 20, 30), MissedRange("b2", 9, None),
    )  # fmt: skip
    told = (MissedRange("b3", 0, 5), MissedRange("b3", 7, 9), MissedRange("b1", 5, None), MissedRange("b2", 9, None))
    assert record_missed(ledger(), missed).missed == told
    closed = close(ledger(), 8, 100, missed=missed)
    assert closed.missed == (MissedRange("b3", 0, 5), MissedRange("b3", 7, 8), MissedRange("b1", 5, 8))
    with pytest.raises(LedgerClosed):
        record_missed(closed, [])


@pytest.mark.parametrize("custom", [{"a": "text"}, {"a": None}, {1: b"x"}, {"a": bytearray(b"x")}], ids=repr)
def test_custom_metadata_that_is_not_text_to_bytes_is_refused(custom):
    with pytest.raises(InvalidArgument, match="text to bytes"):
        ledger(custom=custom)


# --- succession -------------------------------------------------------------------------------------------------------


FORBIDDEN = {
    "another ledger": {"ledger_id": 8},
    "another quorum": {"quorum": Quorum(3, 3, 1)},
    "another creator": {"creator_token": "other"},
    "another age": {"created_at_ms": 1},
    "another digest": {"digest": DigestType.HMAC_SHA256},
    "another key": {"key_verifier": b"other"},
    "another salt": {"key_salt": b"other"},
    "open again": {"state": LedgerState.OPEN, "last_entry_id": -1, "length": 0},
    "in recovery again": {"state": LedgerState.IN_RECOVERY, "last_entry_id": -1, "length": 0},
    "another end": {"last_entry_id": 8},
    "another length": {"length": 101},
    "another fragment": {"fragments": (Fragment(0, ENSEMBLE), Fragment(5, ENSEMBLE))},
}


def test_an_end_belongs_to_closed_ledgers_and_lies_in_or_right_before_the_last_fragment():
    for end in ({"last_entry_id": 9}, {"length": 1}, {"last_entry_id": 0, "state": LedgerState.IN_RECOVERY}):
        with pytest.raises(InvalidArgument, match="is not closed"):
            ledger(**end)
    closed = {"state": LedgerState.CLOSED, "fragments": THREE_FRAGMENTS, "length": 100}
    assert ledger(last_entry_id=24, **closed).last_entry_id == 24
    for last in (23, -2, MAX_ID + 1):
        with pytest.raises(InvalidArgument, match="before its last fragment"):
            ledger(last_entry_id=last, **closed)
    for last, length in ((-1, 100), (24, -1)):
        with pytest.raises(InvalidArgument, match="cannot end at"):
            ledger(last_entry_id=last, **{**closed, "length": length})


def test_what_no_bookie_can_have_missed_is_refused():
    for missed in (MissedRange("b1", -1, 3), MissedRange("b1", 5, 4), MissedRange("", 0, 4)):
        with pytest.raises(InvalidArgument, match="not a valid missed range"):
            ledger(missed=(missed,))
    for missed in (MissedRange("b1", -1, 1), MissedRange("b1", 5, 4)):
        with pytest.raises(InvalidArgument):
            record_missed(ledger(), [missed])
    with pytest.raises(InvalidArgument, match="not a valid missed range"):
        ledger(state=LedgerState.CLOSED, last_entry_id=9, missed=(MissedRange("b1", 0, None),))


# --- ensemble change --------------------------------------------------------------------------------------------------


def test_a_repair_of_an_older_fragment_survives_a_change():
    repaired = (Fragment(0, OTHERS), *THREE_FRAGMENTS[1:])
    new = change_ensemble(ledger(fragments=repaired), THREE_FRAGMENTS[-1], 30, OTHERS)
    assert new.fragments == (*repaired, Fragment(30, OTHERS))


def test_only_the_writer_of_an_open_ledger_changes_its_ensemble():
    old = ledger()
    known = old.last_fragment
    with pytest.raises(LedgerFenced, match="recovered"):
        change_ensemble(begin_recovery(old), known, 10, OTHERS)
    with pytest.raises(LedgerClosed, match="entry 9"):
        change_ensemble(close(old, 9, 100), known, 10, OTHERS)
    with pytest.raises(LedgerFenced, match="another client"):
        change_ensemble(replace(old, fragments=(Fragment(0, OTHERS),)), known, 10, ("b1", "b2", "b4"))


def test_a_change_that_makes_no_ledger_is_refused():
    old = ledger(fragments=THREE_FRAGMENTS)
    with pytest.raises(InvalidArgument, match="strictly increase"):
        change_ensemble(old, old.last_fragment, 24, OTHERS)
    with pytest.raises(InvalidArgument, match="different bookies"):
        change_ensemble(old, old.last_fragment, 30, ("b1", "b1", "b2"))


def test_what_a_bookie_missed_that_is_no_member_any_more_is_forgotten():
    missed = (MissedRange("b3", 0, 4), MissedRange("b2", 0, 4))
    old = record_missed(ledger(), missed)
    assert change_ensemble(old, old.last_fragment, 0, OTHERS).missed == missed[1:]
    assert change_ensemble(old, old.last_fragment, 5, OTHERS).missed == missed
    assert record_missed(ledger(), [MissedRange("b9", 0, 1), missed[0]]).missed == missed[:1]


def test_what_a_bookie_misses_ends_where_another_one_takes_its_place():
    absent = record_missed(ledger(), [MissedRange("b3", 0, None)])
    replaced = change_ensemble(absent, absent.last_fragment, 5, OTHERS)
    assert replaced.missed == (MissedRange("b3", 0, 4),)
    assert record_missed(replaced, absent.missed).missed == (MissedRange("b3", 0, 4),)
    assert close(replaced, 9, 100, missed=absent.missed).missed == (MissedRange("b3", 0, 4),)
    back = change_ensemble(replaced, replaced.last_fragment, 8, ENSEMBLE)
    assert record_missed(back, absent.missed).missed == (MissedRange("b3", 0, 4), MissedRange("b3", 8, None))


@given(
    st.lists(st.tuples(st.integers(1, 9), st.permutations(["b1", "b2", "b3", "b4", "b5"])), max_size=4),
    st.lists(
        st.tuples(st.sampled_from(["b1", "b4", "b5", "b9"]), st.integers(0, 40), st.none() | st.integers(0, 9)),
        max_size=5,
    ),
    st.none() | st.integers(0, 9),
)
def test_ranges_of_members_are_what_fragments_name_their_bookies_for(changes, ranges, tail):
    firsts = [0, *accumulate(gap for gap, _ in changes)]
    fragments = [
        Fragment(first, tuple(names[:3])) for first, (_, names) in zip(firsts, [(0, ENSEMBLE), *changes], strict=True)
    ]
    metadata = ledger(fragments=tuple(fragments))
    if tail is not None:
        metadata = close(metadata, firsts[-1] - 1 + tail, firsts[-1] + tail)
    missed = [MissedRange(name, first, None if size is None else first + size) for name, first, size in ranges]
    beyond = metadata.last_entry_id + 1 if metadata.closed else 100

    def entries(of: Iterable[MissedRange]) -> set[tuple[str, int]]:
        return {
            (each.bookie_id, entry)
            for each in of
            for entry in range(each.first_entry_id, (99 if each.last_entry_id is None else each.last_entry_id) + 1)
        }

    told = of_members(metadata, missed)
    assert entries(told) == {
        (name, entry)
        for name, entry in entries(missed)
        if entry < beyond and name in metadata.fragment_of(entry).bookies
    }
    assert of_members(metadata, told) == told


def test_no_update_moves_the_start_of_an_older_fragment():
    old = ledger(fragments=THREE_FRAGMENTS)
    moved = (THREE_FRAGMENTS[0], Fragment(11, ENSEMBLE), THREE_FRAGMENTS[2])
    for fragments in (moved, THREE_FRAGMENTS[:2]):
        with pytest.raises(InvariantViolation, match="fragments from"):
            check_succession(old, replace(old, fragments=fragments))


@pytest.mark.parametrize("change", FORBIDDEN.values(), ids=FORBIDDEN)
def test_nothing_that_a_close_made_final_may_change(change):
    old = close(ledger(), 9, 100)
    with pytest.raises(InvariantViolation):
        check_succession(old, replace(old, **change))


@pytest.mark.parametrize("owner", [None, "another"])
def test_a_ledger_keeps_its_owner(owner):
    check_succession(ledger(), ledger(writer_token="ours"))
    check_succession(ledger(writer_token="ours"), begin_recovery(ledger(writer_token="ours")))
    with pytest.raises(InvariantViolation, match="owner"):
        check_succession(ledger(writer_token="ours"), ledger(writer_token=owner))


bookie_ids = st.sampled_from([f"b{n}" for n in range(1, 9)])
ensembles = st.lists(bookie_ids, min_size=3, max_size=3, unique=True).map(tuple)


class LedgerLife(RuleBasedStateMachine):
    """Everything that may happen to a ledger, in any order, against the few facts that must hold throughout."""

    @initialize(ensemble=ensembles, writer=st.none() | st.just("w1"))
    def create(self, ensemble, writer):
        self.now = replace(ledger(), fragments=(Fragment(0, ensemble),), writer_token=writer)
        self.owner = writer
        self.end = None

    def becomes(self, after):
        check_succession(self.now, after)
        self.now = after

    @rule(token=st.sampled_from(["w1", "w2"]))
    def adopts(self, token):
        allowed = self.now.state is LedgerState.OPEN and self.owner in (None, token)
        try:
            self.becomes(adopt(self.now, token))
        except (LedgerHasWriter, LedgerFenced, LedgerClosed):
            assert not allowed
        else:
            assert allowed
            self.owner = token

    @rule()
    def recovers(self):
        before = self.now.state
        self.becomes(begin_recovery(self.now))
        assert self.now.state is (LedgerState.IN_RECOVERY if before is LedgerState.OPEN else before)

    @rule(last=st.integers(-1, 60), length=st.integers(0, 3))
    def closes(self, last, length):
        settled = self.end
        possible = last >= self.now.last_fragment.first_entry_id - 1 and (last >= 0 or length == 0)
        try:
            self.becomes(close(self.now, last, length))
        except LedgerClosed:
            assert settled not in (None, (last, length))
        except InvalidArgument:
            assert settled is None
            assert not possible
        else:
            assert settled in (None, (last, length))
            self.end = (last, length)

    @rule(ensemble=ensembles, gap=st.integers(0, 9))
    def changes_ensemble(self, ensemble, gap):
        before = self.now.last_fragment
        first = before.first_entry_id + gap
        try:
            self.becomes(change_ensemble(self.now, before, first, ensemble))
        except (LedgerFenced, LedgerClosed):
            assert self.now.state is not LedgerState.OPEN
        else:
            assert self.now.state is LedgerState.OPEN
            assert self.now.last_fragment == Fragment(first, ensemble)

    @rule(bookie=bookie_ids, first=st.integers(0, 50), size=st.none() | st.integers(0, 9))
    def misses(self, bookie, first, size):
        member = any(bookie in fragment.bookies for fragment in self.now.fragments)
        missed = MissedRange(bookie, first, None if size is None else first + size)
        try:
            self.becomes(record_missed(self.now, [*self.now.missed, missed]))
        except LedgerClosed:
            assert self.end is not None
        else:
            assert member or bookie not in {each.bookie_id for each in self.now.missed}

    @invariant()
    def a_settled_end_stays(self):
        assert self.now.closed == (self.end is not None)
        if self.end is not None:
            assert (self.now.last_entry_id, self.now.length) == self.end

    @invariant()
    def there_is_one_owner(self):
        assert self.now.writer_token == self.owner

    @invariant()
    def i18_fragments_cover_the_ledger_without_a_gap(self):
        ends = [self.now.fragment_end(fragment) for fragment in self.now.fragments]
        firsts = [fragment.first_entry_id for fragment in self.now.fragments]
        assert firsts == [0, *(end + 1 for end in ends[:-1])]
        assert ends[-1] == (self.now.last_entry_id if self.now.closed else MAX_ID)
        for entry_id in range(0, 60, 7):
            if entry_id <= ends[-1]:
                fragment = self.now.fragment_of(entry_id)
                assert fragment.first_entry_id <= entry_id <= self.now.fragment_end(fragment)

    @invariant()
    def missed_ranges_of_a_closed_ledger_lie_within_it(self):
        if self.now.closed:
            assert all(0 <= m.first_entry_id <= m.last_entry_id <= self.now.last_entry_id for m in self.now.missed)

    @invariant()
    def every_stage_survives_being_stored(self):
        assert decode_ledger(encode_ledger(self.now), 7, "here") == self.now


TestLedgerLife = LedgerLife.TestCase
TestLedgerLife.settings = settings(stateful_step_count=40)
