"""Names, positions, times and policies of streams: valid values, and errors for others."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallybook.core.errors import Busy, ForeignPosition, InvalidArgument
from tallybook.metadata.rules import check_record_name
from tallybook.metadata.stream_use import head_record
from tallybook.stream.names import (
    chapter_record,
    check_namespace,
    check_prefix,
    check_stream_name,
    check_subscription,
    name_record,
    subscription_record,
)
from tallybook.stream.policy import StreamPolicy
from tallybook.stream.position import Position
from tallybook.stream.records.dedup import DedupMemory, DedupWindow
from tallybook.stream.start import Start, StartKind

ID = "5f0c9a21" * 4


@pytest.mark.parametrize(
    "name", ["a", "orders/eu", "größe", "日本/注文", "a b", "x" * 255, "a/b/c/d/e/f/g/h", "a.b", "..."]
)
def test_a_stream_may_have_such_a_name_and_records_can_be_named_after_it(name):
    assert check_stream_name(name) == name
    check_record_name(name_record("n" * 63, name))


@pytest.mark.parametrize(
    "name",
    [
        "", "/", "a/", "/a", "a//b", ".", "a/../b", " a", "a ", "a\nb", "a\x00", "\u202eabc", "e\u0301", "x" * 256,
        "ö" * 128, "a/b/c/d/e/f/g/h/i", "\ud800", b"a", None,
    ],
)  # fmt: skip
def test_a_stream_cannot_have_such_a_name(name):
    with pytest.raises(InvalidArgument):
        check_stream_name(name)


@given(st.text())
def test_any_text_is_a_name_or_is_refused_with_a_reason(text):
    try:
        name = check_stream_name(text)
    except InvalidArgument:
        return
    check_record_name(name_record("default", name))


def test_namespaces_and_subscriptions_are_shorter_and_have_no_slash():
    for check in (check_namespace, check_subscription):
        assert check("prod-1") == "prod-1"
        for name in ("a/b", "x" * 64, ""):
            with pytest.raises(InvalidArgument):
                check(name)
    for record in (head_record(ID), chapter_record(ID, 7), subscription_record(ID, "s" * 63)):
        check_record_name(record)


def test_a_prefix_may_end_anywhere():
    assert [check_prefix(prefix) for prefix in ("", "a", "a/", "a/b")] == ["", "a", "a/", "a/b"]
    with pytest.raises(InvalidArgument):
        check_prefix("//")


@given(st.tuples(*[st.integers(0, 2**63 - 1)] * 2, st.integers(0, 10**9)))
def test_a_position_is_printed_and_read_back(place):
    position = Position(*place, tag="5f0c9a21")
    assert Position.parse(str(position)) == position
    assert position.of_stream(ID) == position


@pytest.mark.parametrize(
    "text",
    [
        "", "3-1842-7", "3-1842-7@", "3-1842-7@5f0c9a2", "3-1842@5f0c9a21", "3-1842-7@5f0c9a21x", "-1-0-0@5f0c9a21",
        "03-1-1@5f0c9a21", "3-1842-7@5F0C9A21", "9999999999999999999-1-1@5f0c9a21", "3 -1-1@5f0c9a21", "٣-1-1@5f0c9a21",
    ],
)  # fmt: skip
def test_a_part_of_a_position_is_none(text):
    with pytest.raises(InvalidArgument, match="3-1842-7@5f0c9a21"):
        Position.parse(text)


def test_positions_of_two_streams_have_no_order():
    one, other = Position(1, 0, 0, "5f0c9a21"), Position(1, 0, 0, "00000000")
    assert one != other
    assert Position(1, 9, 0, one.tag) < Position(1, 10, 0, one.tag) < Position(2, 0, 0, one.tag)
    with pytest.raises(ForeignPosition):
        assert one < other
    with pytest.raises(ForeignPosition):
        other.of_stream(ID)


def test_times_may_be_given_in_several_ways_and_mean_the_same():
    moment = datetime(2026, 11, 1, tzinfo=UTC)
    wanted = round(moment.timestamp() * 1000)
    for when in (
        wanted,
        moment,
        "2026-11-01T00:00:00Z",
        "2026-11-01T01:00:00+01:00",
        "2026-11-01",
        moment.astimezone(timezone(timedelta(hours=5))),
        datetime(2026, 11, 1),  # noqa: DTZ001 (what has no zone is taken for UTC)
    ):
        assert Start.timestamp(when) == Start(StartKind.TIMESTAMP, wanted)
    for nonsense in ("yesterday", "", "2026-13-01", None):
        with pytest.raises(InvalidArgument, match="must be a time"):
            Start.timestamp(nonsense)
    with pytest.raises(InvalidArgument):
        Start.sequence(-1)


def test_a_policy_takes_sizes_and_times_as_text():
    policy = StreamPolicy.of(None, retention="72h", offload_after="1h", roll_bytes="64MiB", roll_after="15m")
    assert (policy.retention, policy.offload_after, policy.roll_bytes, policy.roll_after) == (
        259200,
        3600,
        64 << 20,
        900,
    )
    assert StreamPolicy.of(policy, retention=None) == StreamPolicy.of(
        None, **{**policy.model_dump(), "retention": None}
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"retention": "72"}, {"retention": "-1h"}, {"retention": True}, {"retention": "99999999999d"},
        {"roll_bytes": 10}, {"nonsense": 1}, {"ack_quorum": 4}, {"compression": "gzip"}, {"dedup_records": -1},
        {"roll_after": 0},
    ],
    ids=str,
)  # fmt: skip
def test_a_policy_that_cannot_be_is_refused_with_its_name(changes):
    with pytest.raises(InvalidArgument, match="the policy of a stream"):
        StreamPolicy.of(None, **changes)


def test_a_size_that_is_none_is_refused_with_an_example():
    with pytest.raises(InvalidArgument, match="the policy of a stream, max_bytes: must be a size such as 64MiB"):
        StreamPolicy.of(None, max_bytes="banana")


@given(st.integers(0, 6), st.lists(st.sampled_from([b"a", b"b", b"c", b"d", None]), max_size=40))
def test_an_id_is_known_for_as_many_records_as_the_window_has(records, ids):
    window, last = DedupWindow(records), {}
    for sequence, dedup_id in enumerate(ids):
        if dedup_id is not None:
            expected = last.get(dedup_id)
            if expected is not None and expected < sequence - records:
                expected = None
            assert window.find(dedup_id, sequence) == (expected if records else None)
            window.add(dedup_id, sequence, sequence)
            last[dedup_id] = sequence
    assert len(window) <= records


@given(st.integers(0, 6), st.lists(st.tuples(st.booleans(), st.lists(st.binary(min_size=1, max_size=900), max_size=4))))
def test_windows_that_share_room_never_take_more(records, run):
    room = DedupMemory(8_000)
    windows, ends = [DedupWindow(records, room), DedupWindow(records, room)], [0, 0]
    for which, ids in run:
        window = windows[which]
        before = room.taken_bytes
        try:
            window.check_space(ids, ends[which])
        except (Busy, InvalidArgument):
            assert room.taken_bytes == before > 0 or sum(map(len, ids)) + 700 * len(set(ids)) > 4_000
            continue
        for each in ids:
            if window.find(each, ends[which]) is None:
                window.add(each, ends[which], "there")
                ends[which] += 1
        assert room.taken_bytes <= 8_000
    for window in windows:
        window.clear()
    assert room.taken_bytes == 0


def test_a_window_that_is_full_goes_on_where_there_is_no_space_left():
    room = DedupMemory(4_000)
    window, other = DedupWindow(2, room), DedupWindow(2, room)
    for sequence, dedup_id in enumerate((b"a", b"b")):
        window.check_space([dedup_id], sequence)
        window.add(dedup_id, sequence, "there")
    other.check_space([b"x"], 0)
    other.add(b"x", 0, "there")
    with pytest.raises(Busy, match="are in use") as caught:
        other.check_space([b"y", b"z"], 1)
    assert caught.value.retry_after_ms > 0
    window.check_space([b"c"], 2)
    window.check_space([b"a", b"b"], 2)


def test_of_more_ids_than_a_window_has_records_only_those_count_that_stay():
    room = DedupMemory(4_000)
    window = DedupWindow(2, room)
    ids = [b"%d" % number for number in range(10)]
    window.check_space(ids, 0)
    for sequence, dedup_id in enumerate(ids):
        window.add(dedup_id, sequence, "there")
    assert room.taken_bytes == 2 * 701


def test_ids_that_would_never_fit_are_the_callers_fault_and_not_worth_another_try():
    window = DedupWindow(10, DedupMemory(4_000))
    with pytest.raises(InvalidArgument, match="lower dedup_records") as caught:
        window.check_space([b"%d" % number for number in range(3)], 0)
    assert not caught.value.retriable
