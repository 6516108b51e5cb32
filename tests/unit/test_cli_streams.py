"""Parts of the stream commands that need no cluster."""

import pytest

from tallybook.cli.lines.stream_append import only_line
from tallybook.cli.lines.stream_bounds import parse_condition, parse_start, reached
from tallybook.cli.lines.stream_options import changes
from tallybook.core.errors import ForeignPosition, InvalidArgument
from tallybook.stream import Position, Start

HERE = Position(3, 1842, 7, "5f0c9a21")


class Seen:
    """A record, with the fields that the end of a read uses."""

    def __init__(self, position: Position = HERE, sequence: int = 9, timestamp_ms: int = 1_000, txid: int | None = 5):
        self.position, self.sequence, self.timestamp_ms, self.txid = position, sequence, timestamp_ms, txid


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("earliest", Start.earliest()),
        ("latest", Start.latest()),
        ("3-1842-7@5f0c9a21", Start.at(HERE)),
        ("after:3-1842-7@5f0c9a21", Start.after(HERE)),
        ("0", Start.sequence(0)),
        ("20261101", Start.sequence(20_261_101)),
        ("1970-01-01T00:00:02Z", Start.timestamp(2_000)),
        ("1970-01-01T01:00:02+01:00", Start.timestamp(2_000)),
        ("1970-01-02", Start.timestamp(86_400_000)),
        ("1970-01-01T00:01Z", Start.timestamp(60_000)),
        ("txid:77", Start.txid(77)),
        ("txid:-77", Start.txid(-77)),
    ],
)
def test_every_way_to_say_where_a_reader_begins_is_understood(text, start):
    assert parse_start(text) == start


@pytest.mark.parametrize(
    "text",
    ["", "first", "-1", "1.5", "3-1842-7", "3-1842@5f0c9a21", "after:", "after:7", "txid:", "txid:x", "2026-13-01",
     "9" * 30, "٣", "latest "],
)  # fmt: skip
def test_what_is_no_place_is_refused(text):
    with pytest.raises(InvalidArgument):
        parse_start(text)


@pytest.mark.parametrize(
    ("text", "before", "at"),
    [
        ("9", Seen(sequence=8), Seen(sequence=9)),
        ("1970-01-01T00:00:01Z", Seen(timestamp_ms=999), Seen(timestamp_ms=1_000)),
        ("txid:5", Seen(txid=4), Seen(txid=6)),
        ("txid:5", Seen(txid=None), Seen(txid=5)),
        (str(HERE), Seen(Position(3, 1842, 6, HERE.tag)), Seen(HERE)),
        (f"after:{HERE}", Seen(HERE), Seen(Position(3, 1843, 0, HERE.tag))),
    ],
)
def test_reading_ends_before_the_first_record_that_is_reached(text, before, at):
    end = reached(parse_start(text))
    assert not end(before)
    assert end(at)


def test_reading_does_not_end_at_a_record_of_another_stream_or_at_none():
    with pytest.raises(ForeignPosition):
        reached(parse_start("1-0-0@ffffffff"))(Seen())
    for text in ("earliest", "latest"):
        with pytest.raises(InvalidArgument):
            reached(parse_start(text))


def test_a_condition_is_a_position_or_the_start():
    assert parse_condition("start") is None
    assert parse_condition(str(HERE)) == HERE
    with pytest.raises(InvalidArgument):
        parse_condition("latest")


def test_only_what_is_given_changes_a_policy_and_two_words_take_limits_away():
    given = changes(retention="forever", offload_after="default", roll_after="2h", dedup_records=0, ensemble=None)
    assert given == {"retention": None, "offload_after": None, "roll_after": "2h", "dedup_records": 0}


@pytest.mark.parametrize("pieces", [[], [[b"a", b"b"]], [[b"a"], [b"b"], [b"c"]]])
async def test_an_input_of_no_line_or_of_several_is_not_one_line(pieces):
    async def source():
        for piece in pieces:
            yield piece

    with pytest.raises(InvalidArgument):
        await only_line(source())
