"""Snapshot of ledgers: the ranges of entries that a query reads, as readable JSON text.

    {"tallybook_snapshot": 1, "cluster": "5f0c...", "ledgers": [{"ledger": 7, "first": 0, "last": 99}]}

It contains entry ids and no locations, so the same snapshot gives the same rows after ledgers were archived, moved or
deleted from bookies. Entries never change; an entry that is lost later fails the query or is reported as a gap.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, Self

from tallybook.core.errors import InvalidArgument
from tallybook.core.ids import MAX_ID
from tallybook.core.ranges import LedgerEntryRange
from tallybook.metadata.records.format import check_format

from .record_snapshot import RecordSnapshot

FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class TimeRange:
    """Range of write times in microseconds since the epoch: ``first_us`` inclusive, ``end_us`` exclusive."""

    first_us: int | None = None
    end_us: int | None = None

    def __bool__(self) -> bool:
        return self.first_us is not None or self.end_us is not None


ALL_TIMES: Final = TimeRange()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Ranges of entries, ascending by ledger id.

    Args:
        cluster_id: id of the cluster; empty: a bucket without a manifest.
        written: only entries written in this time range.
    """

    cluster_id: str
    ranges: tuple[LedgerEntryRange, ...]
    written: TimeRange = ALL_TIMES

    @classmethod
    def of_json(cls, found: dict[str, Any]) -> Self:
        """Parse the JSON of a snapshot.

        Raises:
            InvalidArgument: it is invalid; the message says why.
        """
        cluster_id, ledgers, written = found.get("cluster", ""), found.get("ledgers"), found.get("written", {})
        if not isinstance(cluster_id, str) or not isinstance(ledgers, list) or not isinstance(written, dict):
            raise InvalidArgument("a snapshot has a 'cluster' and a list of 'ledgers'")
        ranges = tuple(sorted(map(_range_of, ledgers)))
        for one, other in pairwise(ranges):
            if one.ledger_id == other.ledger_id:
                raise InvalidArgument(f"the snapshot has ledger {one.ledger_id} twice")
        return cls(cluster_id, ranges, TimeRange(_time_of(written, "first_us"), _time_of(written, "end_us")))

    def __str__(self) -> str:
        written = {"first_us": self.written.first_us, "end_us": self.written.end_us}
        return json.dumps(
            {
                "tallybook_snapshot": FORMAT,
                "cluster": self.cluster_id,
                "ledgers": [{"ledger": each.ledger_id, "first": each.first, "last": each.last} for each in self.ranges],
                **({"written": written} if self.written else {}),
            }
        )

    def only(self, ledger_ids: Iterable[int]) -> Snapshot:
        """The part of the snapshot for these ledgers."""
        wanted = set(ledger_ids)
        return Snapshot(self.cluster_id, _of(self.ranges, wanted), self.written)


def parse_snapshot(text: str) -> Snapshot | RecordSnapshot:
    """Parse the text of a snapshot.

    Raises:
        InvalidArgument: it is invalid; the message says why.
        NewerFormat: a newer Tallybook has written it.
    """
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"a snapshot is JSON, and this is not: {error}") from error
    check_format("a snapshot", found, FORMAT, key="tallybook_snapshot")
    if not isinstance(found, dict) or found.get("tallybook_snapshot") != FORMAT:
        raise InvalidArgument(f"this is not a snapshot of format {FORMAT}: it has no 'tallybook_snapshot': {FORMAT}")
    return RecordSnapshot.of_json(found) if "streams" in found else Snapshot.of_json(found)


def _of(ranges: Sequence[LedgerEntryRange], wanted: set[int]) -> tuple[LedgerEntryRange, ...]:
    return tuple(each for each in ranges if each.ledger_id in wanted)


def _range_of(found: Any) -> LedgerEntryRange:
    if isinstance(found, dict):
        ledger_id: Any
        first: Any
        last: Any
        ledger_id, first, last = (found.get(name) for name in ("ledger", "first", "last"))
        if all(type(number) is int and 0 <= number <= MAX_ID for number in (ledger_id, first, last)) and first <= last:
            return LedgerEntryRange(ledger_id, first, last)
    raise InvalidArgument(f"a snapshot lists ledgers as {{'ledger': 7, 'first': 0, 'last': 99}}, not as {found!r}")


def _time_of(written: dict[str, Any], name: str) -> int | None:
    found = written.get(name)
    if found is not None and not (type(found) is int and abs(found) <= MAX_ID):
        raise InvalidArgument(f"{name!r} of a snapshot is a number of microseconds, not {found!r}")
    return found
