"""The end of a stream as a query sees it: never behind records that are not confirmed yet."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest

from tallybook.core.errors import EntryCorrupt
from tallybook.sim.deterministic.world import run_seed
from tallybook.spark.locations import ClusterLocation, _LazyArchive
from tallybook.spark.options import LocationOptions
from tallybook.spark.streams.bounds_resolution import MAX_ATTEMPTS, ResolvedAddress, StreamResolver
from tallybook.stream.catalog.head import Head, SegmentEnd, StreamSegment, Truncation
from tallybook.stream.policy import StreamPolicy
from tallybook.stream.records.envelope import (
    START,
    EnvelopeKind,
    RecordColumns,
    StreamMarks,
    encode_mark,
    encode_records,
)

STREAM_ID = "5f0c9a21" + "0" * 24
RECORDS = RecordColumns(0)
RECORDS.add(b"x", None, None, None, None)


@dataclass
class Ledger:
    """Answers of bookies for an open ledger, poll by poll; the last one is repeated."""

    looks: list[tuple[int, bool, bytes | None]]
    """Last add confirmed, whether it is closed, and what its last entry holds; ``None``: it is damaged."""

    def open(self) -> Any:
        last, closed, payload = self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]

        async def read_entry(entry: int) -> Any:
            if payload is None:
                raise EntryCorrupt("nobody has it")
            assert entry == last
            return SimpleNamespace(payload=payload)

        return SimpleNamespace(last_add_confirmed=last, closed=closed, read_entry=read_entry)


def records(before: int) -> bytes:
    return encode_records(RECORDS, StreamMarks(before))


def end_mark(before: int) -> bytes:
    return encode_mark(EnvelopeKind.END_OF_SEGMENT, StreamMarks(before), 0)


HEAD = Head(
    STREAM_ID, "default", "s", 0, StreamPolicy(),
    segments=(
        StreamSegment(1, 11, 0, SegmentEnd(4, StreamMarks(10), 100, 0)), StreamSegment(2, 12, 0),
        StreamSegment(3, 13, 0),
    ),
    next_segment=4, settled_marks=StreamMarks(10),
)  # fmt: skip


def end_of(head: Head, **ledgers: Ledger) -> ResolvedAddress:
    """The end that is found, with the ledgers ``l12`` and so on."""

    async def play(world: Any) -> ResolvedAddress:
        async def open_ledger(ledger_id: int, *, recover: bool) -> Any:
            assert not recover, "a query fences nobody"
            return ledgers[f"l{ledger_id}"].open()

        async def read_head(stream_id: str, name: str) -> Head:
            return head

        client: Any = SimpleNamespace(open_ledger=open_ledger)
        place = ClusterLocation(
            client, SimpleNamespace(), "c", _LazyArchive(AsyncExitStack(), ""), LocationOptions("x", None)
        )  # type: ignore[arg-type]
        streams = StreamResolver(place, world.clock)
        streams.catalog = SimpleNamespace(read=read_head)  # type: ignore[assignment]
        return await streams.latest(head)

    found: ResolvedAddress = run_seed(1, play).value
    return found


@pytest.mark.parametrize(
    ("second", "third", "end"),
    [
        ([(-1, False, None)], [(-1, False, None)], ResolvedAddress((1, 5, 0), 10)),
        ([(3, False, records(20))], [(-1, False, None)], ResolvedAddress((2, 4, 0), 21)),
        ([(4, False, end_mark(21))], [(0, False, records(21))], ResolvedAddress((3, 1, 0), 22)),
        ([(3, True, records(20))], [(0, False, records(21))], ResolvedAddress((3, 1, 0), 22)),
        ([(-1, True, None)], [(0, False, records(10))], ResolvedAddress((3, 1, 0), 11)),
        # It goes on in the third, so the end of the second is being written: the query waits for it.
        (
            [(2, False, records(19)), (4, False, end_mark(21))],
            [(0, False, records(21))],
            ResolvedAddress((3, 1, 0), 22),
        ),
        # Its writer has died in between: records that may be incomplete are not skipped.
        ([(2, False, records(19))] * (MAX_ATTEMPTS + 1), [(0, False, records(21))], ResolvedAddress((2, 3, 0), 20)),
        ([(3, False, None)], [(-1, False, None)], ResolvedAddress((2, 4, 0), 10, exact=False)),
    ],
)
def test_a_stream_ends_behind_what_is_confirmed_without_a_hole(second, third, end):
    assert end_of(HEAD, l12=Ledger(second), l13=Ledger(third)) == end


def test_a_stream_without_segments_ends_where_it_begins():
    empty = replace(HEAD, segments=(), settled_marks=START)
    assert end_of(empty) == ResolvedAddress((1, 0, 0), 0)
    cut = replace(HEAD, segments=(), truncation=Truncation(4, 0, 0, 10))
    assert end_of(cut) == ResolvedAddress((4, 0, 0), 10)
