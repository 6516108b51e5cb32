"""The head of a stream: who may change what, idempotent changes, and atomic storage."""

import json
from contextlib import suppress
from dataclasses import replace
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallybook.core.errors import DamagedFile, InvariantViolation, NewerFormat, NoSuchStream, StreamEnded, StreamFenced
from tallybook.stream.catalog.head import (
    CHAPTER_SEGMENTS,
    MAX_SEGMENTS,
    Head,
    Owner,
    SegmentEnd,
    StreamSegment,
    Truncation,
    add_segment,
    announce,
    begin_delete,
    drop_chapter,
    fold,
    folded,
    forget_doomed,
    release,
    seal,
    set_policy,
    take,
    truncate,
)
from tallybook.stream.catalog.head_codec import decode_chapter, decode_head, encode_chapter, encode_head
from tallybook.stream.policy import StreamPolicy
from tallybook.stream.records.envelope import START, StreamMarks
from tallybook.stream.retention.janitor import expired

ONE, OTHER = Owner("t1", "s1", "one"), Owner("t2", "s2", "other")
NEW = Head("5f0c9a21" * 4, "default", "orders/eu", 1, StreamPolicy())
OWNED = take(NEW, ONE, None)


def end(records, last_entry=9, ended_at_ms=5):
    return SegmentEnd(last_entry, StreamMarks(records, 2, 3, 1), 100, ended_at_ms)


def with_segments(number, head=OWNED, ended=0):
    ids = count(100 + 1000 * head.next_segment)
    for _ in range(number):
        ledger_id = next(ids)
        known = [each.ledger_id for each in head.segments]
        head = add_segment(announce(head, ONE, ledger_id, known), ONE, ledger_id, 7)
    for index, segment in enumerate(head.segments[:ended], 1):
        head = seal(head, ONE, segment.number, end(10 * index, ended_at_ms=index * 1000), (segment.number, 8, 0))
    return head


def test_taking_raises_the_epoch_once_and_gives_up_what_was_half_made():
    assert (OWNED.epoch, OWNED.owner) == (1, ONE)
    half = announce(OWNED, ONE, 7, ())
    taken = take(half, OTHER, ONE)
    assert (taken.epoch, taken.owner, taken.making, taken.doomed) == (2, OTHER, None, (7,))
    assert take(taken, OTHER, ONE) == taken, "made twice, it is made once"
    assert take(taken, Owner("t3", "s", "late"), ONE) == taken, "somebody else came first"


@pytest.mark.parametrize(
    "change",
    [
        lambda head, owner: announce(head, owner, 8, ()),
        lambda head, owner: add_segment(head, owner, 8, 1),
        lambda head, owner: seal(head, owner, 1, end(10), None),
    ],
    ids=["announce", "add", "seal"],
)
def test_only_the_owner_changes_segments(change):
    head = take(with_segments(1), OTHER, ONE)
    with pytest.raises(StreamFenced, match="other"):
        change(head, ONE)
    with pytest.raises(StreamFenced, match="its writer has lost it"):
        change(release(head, OTHER), ONE)
    with pytest.raises(NoSuchStream):
        change(begin_delete(head), OTHER)


def test_a_segment_is_announced_added_and_sealed_and_each_may_be_done_twice():
    announced = announce(OWNED, ONE, 7, ())
    assert announce(announced, ONE, 7, ()) == announced
    added = add_segment(announced, ONE, 7, 50)
    assert added.segments == (StreamSegment(1, 7, 50),)
    assert add_segment(added, ONE, 7, 60) == added
    assert announce(added, ONE, 7, (7,)) == added
    sealed = seal(added, ONE, 1, end(10), None)
    assert sealed.settled_marks == end(10).marks
    assert seal(sealed, ONE, 1, end(10, ended_at_ms=99), None) == sealed
    with pytest.raises(InvariantViolation):
        seal(sealed, ONE, 1, end(11), None)


def test_another_announcement_gives_up_the_one_before_and_nothing_else_is_added():
    assert announce(announce(OWNED, ONE, 7, ()), ONE, 8, ()).doomed == (7,)
    with pytest.raises(InvariantViolation):
        add_segment(OWNED, ONE, 7, 1)


def test_segments_end_in_order_and_never_before_they_begin():
    two = with_segments(2)
    with pytest.raises(InvariantViolation):
        seal(two, ONE, 2, end(10), None)
    with pytest.raises(InvariantViolation):
        seal(seal(two, ONE, 1, end(10), None), ONE, 2, end(9), None)


def test_an_empty_segment_is_given_up_and_its_number_is_not_used_again():
    head = seal(with_segments(1), ONE, 1, SegmentEnd(-1, START, 0, 1), None)
    assert (head.segments, head.doomed) == ((), (1100,))
    assert with_segments(1, head).segments[0].number == 2
    assert seal(head, ONE, 1, SegmentEnd(-1, START, 0, 1), None) == head


def test_a_segment_that_the_owner_does_not_know_of_is_given_up_before_another_one_is_made():
    """The answer to its being added was lost: it would stay open in the middle of the stream for ever."""
    two = with_segments(2)
    after = announce(two, ONE, 9, [two.segments[0].ledger_id])
    assert [each.number for each in after.segments] == [1]
    assert after.doomed == (two.segments[1].ledger_id,)
    assert announce(after, ONE, 9, [two.segments[0].ledger_id]) == after


def test_a_stream_ends_with_the_segment_that_says_so_and_is_never_taken_up_again():
    three = announce(with_segments(3, ended=1), ONE, 9, [1101, 1102])
    ended = seal(three, ONE, 2, end(20), (2, 9, 0), ends_stream=True)
    assert (ended.ended, ended.owner, ended.making, ended.open_segments) == (True, None, None, ())
    assert ended.doomed == (1102, 9)
    assert seal(ended, ONE, 2, end(20), (2, 9, 0), ends_stream=True) == ended
    with pytest.raises(StreamEnded):
        announce(ended, ONE, 7, ())


def test_where_a_stream_stands_outlives_its_segments():
    head = with_segments(3, ended=3)
    gone = truncate(head, Truncation(4, 0, 0, 30))
    assert gone.segments == ()
    assert (gone.settled_marks, gone.last_place) == (head.settled_marks, (3, 8, 0))
    assert decode_head("r", encode_head(gone)) == gone


def test_truncation_only_moves_on_and_dooms_what_lies_wholly_before_it():
    head = with_segments(4, ended=3)
    cut = truncate(head, Truncation(3, 5, 1, 25))
    assert [each.number for each in cut.segments] == [3, 4]
    assert cut.doomed == (1100, 1101)
    assert truncate(cut, Truncation(2, 0, 0, 10)) == cut
    assert truncate(cut, Truncation(3, 5, 1, 25)) == cut
    assert forget_doomed(cut, [1100]).doomed == (1101,)


def test_a_deleted_stream_releases_everything_and_cannot_be_changed():
    gone = begin_delete(announce(with_segments(2, ended=1), ONE, 9, (1101,)))
    assert (gone.segments, gone.owner, gone.doomed) == ((), None, (1100, 1101, 9))
    assert begin_delete(gone) == gone
    for change in (
        lambda: take(gone, OTHER, None),
        lambda: set_policy(gone, StreamPolicy()),
        lambda: truncate(gone, Truncation(2)),
    ):
        with pytest.raises(NoSuchStream):
            change()


def test_segments_are_put_into_chapters_where_the_head_has_no_space_for_them():
    head = with_segments(MAX_SEGMENTS)
    assert fold(head) == ()
    head = with_segments(1, with_segments(MAX_SEGMENTS, ended=MAX_SEGMENTS))
    segments = fold(head)
    assert len(segments) == CHAPTER_SEGMENTS
    shorter = folded(head, segments[0].number, segments)
    assert (shorter.chapters[0].first_segment, shorter.chapters[0].last_segment) == (1, CHAPTER_SEGMENTS)
    assert shorter.chapters[0].marks == segments[-1].end.marks
    assert folded(shorter, segments[0].number, segments) == shorter
    assert shorter.settled_marks == head.settled_marks
    assert drop_chapter(shorter, 1, [5]).doomed == (5,)
    assert drop_chapter(drop_chapter(shorter, 1, [5]), 1, [5]).doomed == (5,)


def test_a_full_head_fits_a_record():
    big = SegmentEnd(2**62, StreamMarks(2**62, 2**50, 2**62, 2**62), 2**40, 2**45)
    head = OWNED
    for number in range(1, MAX_SEGMENTS + 3):
        head = replace(head, segments=(*head.segments, StreamSegment(number, 2**40 + number, 2**45, big)))
    assert len(encode_head(head)) < 48 * 1024
    assert len(encode_chapter(fold(head))) < 48 * 1024


def test_what_is_older_than_the_retention_is_given_up_from_the_front():
    head = set_policy(with_segments(4, ended=3), StreamPolicy.of(None, retention="10s"))
    assert expired(head, 10_500) is None
    assert expired(head, 12_500) == Truncation(3, 0, 0, 20)
    assert expired(truncate(head, Truncation(3, 0, 0, 20)), 12_500) is None
    assert expired(set_policy(head, StreamPolicy()), 10**12) is None


HEADS = st.builds(
    lambda ended, segments, making, truncation, deleting: (
        begin_delete(replace(with_segments(segments, ended=min(ended, segments)), making=making, truncation=truncation))
        if deleting
        else replace(with_segments(segments, ended=min(ended, segments)), making=making, truncation=truncation)
    ),
    st.integers(0, 4),
    st.integers(0, 4),
    st.none() | st.integers(0, 2**62),
    st.builds(Truncation, *[st.integers(0, 2**40)] * 4),
    st.booleans(),
)


@given(HEADS)
def test_a_head_is_stored_and_read_back(head):
    assert decode_head("r", encode_head(head)) == head
    assert decode_chapter("r", encode_chapter(head.segments)) == head.segments


@given(HEADS, st.data())
def test_a_damaged_head_is_found_out_or_is_a_head(head, data):
    encoded = encode_head(head)
    at = data.draw(st.integers(0, len(encoded) - 1))
    damaged = encoded[:at] + bytes([data.draw(st.integers(0, 255))]) + encoded[at + 1 :]
    with suppress(DamagedFile, NewerFormat):
        assert isinstance(decode_head("streams", damaged), Head)


@pytest.mark.parametrize("value", [b"", b"[]", b"7", b'{"format":0}', b'{"format":1}', b'{"format":1,"id":7}', b"\xff"])
def test_what_is_no_head_is_damaged(value):
    with pytest.raises(DamagedFile, match="the record r"):
        decode_head("r", value)


def test_only_a_head_with_a_limit_in_bytes_has_a_format_that_earlier_versions_refuse():
    plain = Head("5f0c9a21" * 4, "default", "orders", 1, StreamPolicy(retention=60))
    limited = replace(plain, policy=StreamPolicy.of(retention_bytes="1GiB", max_bytes="2GiB"))
    assert [json.loads(encode_head(each))["format"] for each in (plain, limited)] == [1, 2]
    assert decode_head("r", encode_head(limited)) == limited
