"""The archive in ledger metadata: valid transitions, refused ones, and none leads back."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tallybook.core.errors import Conflict, DamagedFile, InvalidArgument, InvariantViolation, NewerFormat
from tallybook.core.ids import MAX_ID
from tallybook.core.quorum import Quorum
from tallybook.metadata.codec import decode_ledger, encode_ledger
from tallybook.metadata.ledger.archived import (
    MAX_KEY_BYTES,
    ArchiveAttempt,
    IndexPart,
    Receipt,
    abandon_archiving,
    begin_archiving,
    commit_archived,
    release_copies,
)
from tallybook.metadata.ledger.model import Fragment, LedgerMetadata, begin_recovery, check_succession, close
from tallybook.proto import metadata_pb2 as pb

from .test_metadata_codec import sealed

TTL_MS = 60_000
OPEN = LedgerMetadata(7, Quorum(1, 1, 1), (Fragment(0, ("b1",)),), "c", 1_700_000_000_000)
CLOSED = close(OPEN, 9, 100)


def attempt(object_id: str = "one", began_at_ms: int = 1_000_000) -> ArchiveAttempt:
    return ArchiveAttempt(object_id, began_at_ms)


def receipt(object_id: str = "one", **changes) -> Receipt:
    made = Receipt(
        object_id, f"ledgers/{object_id}.parquet", 5_000, bytes(32), IndexPart(4_000, 900, 2_000, 1), 10, 100, 2, 3
    )
    return replace(made, **changes)


def begin(metadata: LedgerMetadata, this: ArchiveAttempt, from_object: str | None = None) -> LedgerMetadata:
    return begin_archiving(metadata, this, from_object=from_object, ttl_ms=TTL_MS)


ARCHIVED = commit_archived(begin(CLOSED, attempt()), receipt())

# --- what a value must be ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "key",
    ["", "/a", "a/", "a//b", ".", "..", "../a", "a/../b", "a/./b", "a\\b", "a\nb", "a\0b", "\ud800", "x" * 1025,
     "ü" * 513],
)  # fmt: skip
def test_a_key_that_leads_elsewhere_or_nowhere_is_refused(key):
    with pytest.raises(InvalidArgument, match="is not the key of an archive object"):
        receipt(key=key)


@pytest.mark.parametrize("key", ["a", "a/b.parquet", "a/..b/c..", "größe/ü", "x" * MAX_KEY_BYTES])
def test_any_other_key_is_taken(key):
    assert receipt(key=key).key == key


@pytest.mark.parametrize(
    "index",
    [IndexPart(-1, 900, 2_000, 1), IndexPart(0, 0, 0, 0), IndexPart(0, 1, 0, 0), IndexPart(4_101, 900, 2_000, 1)],
)
def test_an_index_outside_its_object_or_without_a_byte_is_refused(index):
    with pytest.raises(InvalidArgument, match="is outside of its 5000 bytes"):
        receipt(index=index)


@pytest.mark.parametrize(
    "changes", [{"object_id": ""}, {"object_sha256": bytes(31)}, {"entries": -1}, {"payload_bytes": -1}], ids=repr
)
def test_a_receipt_or_an_attempt_that_identifies_nothing_is_refused(changes):
    with pytest.raises(InvalidArgument):
        receipt(**changes)
    with pytest.raises(InvalidArgument, match="must name its object"):
        attempt("")


EMPTY = receipt(entries=0, payload_bytes=0)


@pytest.mark.parametrize(
    ("metadata", "change", "complaint"),
    [
        (OPEN, {"archiving": attempt()}, "not closed"),
        (begin_recovery(OPEN), {"archiving": attempt()}, "not closed"),
        (OPEN, {"archived": EMPTY}, "not closed"),
        (begin_recovery(OPEN), {"archived": EMPTY}, "not closed"),
        (CLOSED, {"archived": receipt(entries=9)}, "10 entries with 100 bytes"),
        (CLOSED, {"archived": receipt(entries=11)}, "10 entries with 100 bytes"),
        (CLOSED, {"archived": receipt(payload_bytes=99)}, "10 entries with 100 bytes"),
        (CLOSED, {"copies_released": True}, "is not archived"),
    ],
)
def test_metadata_say_of_the_archive_only_what_can_be(metadata, change, complaint):
    with pytest.raises(InvalidArgument, match=complaint):
        replace(metadata, **change)


# --- transitions ------------------------------------------------------------------------------------------------------


def test_an_attempt_is_announced_carried_through_and_released():
    trying = begin(CLOSED, attempt())
    assert trying == replace(CLOSED, archiving=attempt())
    archived = commit_archived(trying, receipt())
    assert archived == replace(CLOSED, archived=receipt())
    assert release_copies(archived, "one") == replace(archived, copies_released=True)


@pytest.mark.parametrize("age", [TTL_MS, 10 * TTL_MS, -TTL_MS])
def test_an_attempt_that_is_too_old_or_of_a_clock_far_ahead_is_replaced(age):
    later = attempt("two", 1_000_000 + age)
    replaced = begin(begin(CLOSED, attempt()), later)
    assert replaced.archiving == later
    with pytest.raises(Conflict, match="not being archived into object one any more"):
        commit_archived(replaced, receipt("one"))


MOVING = begin(ARCHIVED, attempt("two"), from_object="one")
BEGUN, RELEASED = begin(CLOSED, attempt()), release_copies(ARCHIVED, "one")


def test_a_transition_that_was_made_or_superseded_changes_nothing_more():
    assert begin(BEGUN, attempt()) == BEGUN
    for now in (ARCHIVED, MOVING):
        assert commit_archived(now, receipt()) is now
    for now, given_up in ((BEGUN, "two"), (ARCHIVED, "one")):
        assert abandon_archiving(now, given_up) is now
    assert release_copies(RELEASED, "one") == RELEASED


def test_a_move_keeps_the_old_receipt_until_the_new_one_is_there_and_the_release_for_ever():
    assert MOVING.archived == receipt("one")
    assert abandon_archiving(MOVING, "two") == ARCHIVED
    moved = commit_archived(MOVING, receipt("two"))
    assert (moved.archived, moved.archiving, moved.copies_released) == (receipt("two"), None, False)
    moving = begin(RELEASED, attempt("two"), from_object="one")
    assert commit_archived(moving, receipt("two")).copies_released


GONE = "not being archived into object other any more"


REFUSED = [
    (lambda: begin(OPEN, attempt()), InvalidArgument, "not closed"),
    (lambda: begin(begin_recovery(OPEN), attempt()), InvalidArgument, "not closed"),
    (lambda: begin(BEGUN, attempt("two")), Conflict, "being archived into object one"),
    (lambda: begin(BEGUN, attempt("two", 1_000_000 + TTL_MS - 1)), Conflict, "being archived into object one"),
    (lambda: begin(BEGUN, attempt("two", 1_000_000 - TTL_MS + 1)), Conflict, "being archived into object one"),
    (lambda: begin(CLOSED, attempt(), from_object="zero"), Conflict, "in object None, not in zero"),
    (lambda: begin(ARCHIVED, attempt("two")), Conflict, "in object one, not in None"),
    (lambda: begin(ARCHIVED, attempt("two"), from_object="zero"), Conflict, "in object one, not in zero"),
    (lambda: begin(ARCHIVED, attempt("one"), from_object="one"), InvalidArgument, "already in object one"),
    (lambda: commit_archived(CLOSED, receipt("other")), Conflict, GONE),
    (lambda: commit_archived(BEGUN, receipt("other")), Conflict, GONE),
    (lambda: commit_archived(ARCHIVED, receipt("other")), Conflict, GONE),
    (lambda: commit_archived(BEGUN, receipt(entries=9)), InvalidArgument, "its receipt has 9 with 100"),
    (lambda: release_copies(CLOSED, "two"), Conflict, "not in object two"),
    (lambda: release_copies(BEGUN, "two"), Conflict, "not in object two"),
    (lambda: release_copies(ARCHIVED, "two"), Conflict, "not in object two"),
]


def test_a_transition_that_does_not_fit_is_refused():
    for transition, error, complaint in REFUSED:
        with pytest.raises(error, match=complaint):
            transition()


# --- what no update may do --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "change", "complaint"),
    [
        (ARCHIVED, {"archived": None}, "forget the archive object"),
        (CLOSED, {"archived": receipt()}, "was not announced; the one announced is None"),
        (begin(CLOSED, attempt("two")), {"archived": receipt("one")}, "the one announced is two"),
        (MOVING, {"archived": receipt("one", object_bytes=6_000)}, "the one announced is two"),
        (release_copies(ARCHIVED, "one"), {"copies_released": False}, "needed again"),
        (begin(CLOSED, attempt()), {"archived": receipt(), "copies_released": True}, "together with the receipt"),
        (MOVING, {"archived": receipt("two"), "archiving": None, "copies_released": True}, "together with the receipt"),
    ],
)
def test_no_update_forgets_the_archive_or_gets_ahead_of_it(old, change, complaint):
    with pytest.raises(InvariantViolation, match=complaint):
        check_succession(old, replace(old, **change))


object_ids = st.sampled_from(["one", "two", "three"])


class ArchiveLife(RuleBasedStateMachine):
    """Several offloaders at once, each with its own clocks, with requests in any order."""

    @initialize()
    def create(self):
        self.now = CLOSED
        self.trying: str | None = None
        self.held: str | None = None
        self.released = False

    def becomes(self, after: LedgerMetadata) -> None:
        check_succession(self.now, after)
        self.now = decode_ledger(encode_ledger(after), 7, "here")
        assert self.now == after

    @rule(
        object_id=object_ids, began=st.integers(0, 5).map(lambda n: n * TTL_MS // 2), from_object=st.none() | object_ids
    )
    def begins(self, object_id, began, from_object):
        try:
            self.becomes(begin(self.now, attempt(object_id, began), from_object))
        except Conflict:
            assert from_object != self.held or self.trying not in (None, object_id)
        except InvalidArgument:
            assert object_id == self.held
        else:
            assert from_object == self.held
            self.trying = object_id

    @rule(object_id=object_ids)
    def commits(self, object_id):
        try:
            self.becomes(commit_archived(self.now, receipt(object_id)))
        except Conflict:
            assert object_id not in (self.trying, self.held)
        else:
            if object_id != self.held:
                assert object_id == self.trying
                self.trying, self.held = None, object_id

    @rule(object_id=object_ids)
    def abandons(self, object_id):
        self.becomes(abandon_archiving(self.now, object_id))
        self.trying = None if self.trying == object_id else self.trying

    @rule(object_id=object_ids)
    def releases(self, object_id):
        try:
            self.becomes(release_copies(self.now, object_id))
        except Conflict:
            assert object_id != self.held
        else:
            self.released = True

    @invariant()
    def metadata_say_what_happened(self):
        if hasattr(self, "now"):
            assert (self.now.archiving and self.now.archiving.object_id) == self.trying
            assert (self.now.archived and self.now.archived.object_id) == self.held
            assert self.now.copies_released is self.released


TestArchiveLife = ArchiveLife.TestCase
TestArchiveLife.settings = settings(stateful_step_count=30)

# --- as bytes ---------------------------------------------------------------------------------------------------------

texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
keys = st.lists(
    st.text("abcäö.-_= %", min_size=1, max_size=6).filter(lambda s: s.strip(".")), min_size=1, max_size=4
).map("/".join)
crcs = st.integers(0, 2**32 - 1)
times = st.integers(-(2**63), 2**63 - 1)


@st.composite
def archived_ledgers(draw) -> LedgerMetadata:
    last = draw(st.integers(-1, MAX_ID - 1))
    closed = close(OPEN, last, draw(st.integers(0, MAX_ID)) if last >= 0 else 0)
    offset, stored = draw(st.integers(0, 2**40)), draw(st.integers(1, 2**40))
    held = Receipt(
        draw(texts), draw(keys), offset + stored + draw(st.integers(0, 2**40)),
        draw(st.binary(min_size=32, max_size=32)),
        IndexPart(offset, stored, draw(st.integers(1, MAX_ID)), draw(crcs)),
        last + 1, closed.length, draw(crcs), draw(times),
    )  # fmt: skip
    archived = draw(st.none() | st.just(held))
    return replace(
        closed,
        archiving=draw(st.none() | st.builds(ArchiveAttempt, texts, times)),
        archived=archived,
        copies_released=archived is not None and draw(st.booleans()),
    )


@given(archived_ledgers())
def test_any_archived_ledger_comes_back_as_it_was(metadata):
    data = encode_ledger(metadata)
    assert decode_ledger(data, 7, "here") == metadata
    assert encode_ledger(decode_ledger(data, 7, "here")) == data


FULL = replace(
    release_copies(commit_archived(begin(CLOSED, attempt()), receipt(object_sha256=bytes(range(32)))), "one"),
    archiving=attempt("two", 1_700_000_000_000),
)

# Written out: it must be read for ever.
GOLDEN = bytes.fromhex(
    "544c45440100000094000000d09940b8080712090801100118012080081a0412"
    "0262312201632880d095ffbc313003381240644801a2010c0a0374776f1080d0"
    "95ffbc31aa015a0a036f6e6512136c6564676572732f6f6e652e706172717565"
    "741888272220000102030405060708090a0b0c0d0e0f10111213141516171819"
    "1a1b1c1d1e1f2a0e08a01f10840718d00f2501000000300a3864450200000048"
    "03b00101"
)


def test_the_golden_value_is_still_written_and_read():
    assert encode_ledger(FULL).hex() == GOLDEN.hex()
    assert decode_ledger(GOLDEN, 7, "here") == FULL


SPOILERS = {
    "an attempt at nothing": lambda message: message.archiving.ClearField("object_id"),
    "a receipt of nothing": lambda message: message.archived.Clear(),
    "no index": lambda message: message.archived.ClearField("index"),
    "half a hash": lambda message: setattr(message.archived, "object_sha256", bytes(16)),
    "a key that leads elsewhere": lambda message: setattr(message.archived, "key", "../secrets"),
    "a receipt of a part": lambda message: setattr(message.archived, "entries", 9),
    "released, and not archived": lambda message: message.ClearField("archived"),
    "archived, and open": lambda message: [setattr(message, "state", 1), message.ClearField("last_entry_id")],
}


@pytest.mark.parametrize("spoil", SPOILERS.values(), ids=SPOILERS)
def test_a_well_formed_message_that_makes_no_sense_is_damage(spoil):
    message = pb.Ledger.FromString(GOLDEN[16:])
    spoil(message)
    with pytest.raises(DamagedFile, match="node /x"):
        decode_ledger(sealed(b"TLED", message.SerializeToString()), 7, "node /x")


@pytest.mark.parametrize("kind", ["ArchiveAttempt", "Receipt", "IndexPart"])
def test_a_field_that_is_not_known_inside_a_receipt_is_refused(kind):
    message = pb.Ledger.FromString(GOLDEN[16:])
    archived = message.archived
    part = {"ArchiveAttempt": message.archiving, "Receipt": archived, "IndexPart": archived.index}[kind]
    part.MergeFromString(bytes([0xE8, 0x04, 1]))  # field 77
    with pytest.raises(NewerFormat, match=rf"with fields {kind}\.77,"):
        decode_ledger(sealed(b"TLED", message.SerializeToString()), 7, "node /x")
