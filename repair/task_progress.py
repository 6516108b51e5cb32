"""How far the work at a task is: what its holder writes into it with each renewal, for people to see. Pure.

Nothing rests on it. An older Tallybook hands tasks out without it, and drops it from those that it works at; then it is
not known how many ledgers there were, and what the next holder writes counts from where that one has taken over.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from tallybook.metadata.record_json import NOT_UNDERSTOOD

MOST_UNDER_WAY: Final = 32
"""Ledgers of which a task says how far they are: a record is small."""


class LedgerProgress(NamedTuple):
    """A ledger that is being mended.

    ``places``: bookies' parts in its fragments that are looked at. ``expected_bytes``: what is to be copied, about;
    ``None`` where only a look at what bookies hold can tell.
    """

    ledger_id: int
    places_done: int
    places: int
    copied_bytes: int
    expected_bytes: int | None


class TaskProgress(NamedTuple):
    """What was done of a task, by all who have held it, and what it is to come to.

    Attributes:
        ledgers: those that it was handed out with; 0: not known.
        not_mended: of those that were looked at, the ones that could not be mended in full.
        places: bookies' parts in fragments that were looked at, and are complete where that could be.
        batches, copied_bytes: given to bookies.
        expected_bytes: what was to be copied when it was handed out, about; ``None``: not known.
        bytes_per_second: copied since the last time that this was written; 0 where nobody is at it.
    """

    ledgers: int = 0
    not_mended: int = 0
    places: int = 0
    batches: int = 0
    copied_bytes: int = 0
    expected_bytes: int | None = None
    bytes_per_second: int = 0
    under_way: tuple[LedgerProgress, ...] = ()

    @property
    def at_rest(self) -> TaskProgress:
        """The same, while nobody is at it."""
        return self._replace(bytes_per_second=0, under_way=())

    @property
    def seconds_left(self) -> int | None:
        """How long the rest takes at the present rate, about; ``None`` where either is not known."""
        if self.expected_bytes is None or not self.bytes_per_second:
            return None
        return max(0, self.expected_bytes - self.copied_bytes) // self.bytes_per_second

    def as_json(self) -> dict[str, object]:
        """As part of a record."""
        return {**self._asdict(), "under_way": [each._asdict() for each in self.under_way]}


NOTHING_KNOWN: Final = TaskProgress()


def decode_progress(found: Any) -> TaskProgress:
    """What ``as_json`` gave; nothing is known where there is none.

    Nor where it is something else, as a later version may write it: a task is not left undone for that.
    """
    try:
        return NOTHING_KNOWN if found is None else _progress(found)
    except NOT_UNDERSTOOD:
        return NOTHING_KNOWN


def _progress(found: Mapping[str, Any]) -> TaskProgress:
    expected = found["expected_bytes"]
    return TaskProgress(
        int(found["ledgers"]),
        int(found["not_mended"]),
        int(found["places"]),
        int(found["batches"]),
        int(found["copied_bytes"]),
        None if expected is None else int(expected),
        int(found["bytes_per_second"]),
        tuple(_ledger(each) for each in found["under_way"]),
    )


def _ledger(found: Mapping[str, Any]) -> LedgerProgress:
    expected = found["expected_bytes"]
    return LedgerProgress(
        int(found["ledger_id"]),
        int(found["places_done"]),
        int(found["places"]),
        int(found["copied_bytes"]),
        None if expected is None else int(expected),
    )


def summed(tasks: Iterable[TaskProgress]) -> TaskProgress:
    """Of several tasks: what is not known of one of them is not known of all."""
    found = list(tasks)
    expected = [each.expected_bytes for each in found]
    known = all(each.ledgers for each in found)
    return TaskProgress(
        sum(each.ledgers for each in found) if known else 0,
        sum(each.not_mended for each in found),
        sum(each.places for each in found),
        sum(each.batches for each in found),
        sum(each.copied_bytes for each in found),
        None if None in expected else sum(each for each in expected if each is not None),
        sum(each.bytes_per_second for each in found),
        tuple(ledger for each in found for ledger in each.under_way),
    )
