"""Progress of a repair task, which its replicator writes into the task with each renewal. For display only. Pure.

Older versions publish tasks without progress and drop it from tasks that they work at. Then the number of ledgers is
not known, and the next replicator counts from where it has taken over.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from tallybook.metadata.records.json_errors import DECODE_ERRORS

MAX_IN_FLIGHT: Final = 32
"""Ledgers in ``TaskProgress.under_way`` at most, to keep the record small."""


class LedgerProgress(NamedTuple):
    """A ledger that is being repaired.

    Attributes:
        places, places_done: fragment replicas to check, and those that were checked.
        expected_bytes: about how much is to be copied; ``None`` if it depends on what bookies hold.
    """

    ledger_id: int
    places_done: int
    places: int
    copied_bytes: int
    expected_bytes: int | None


class TaskProgress(NamedTuple):
    """The work of all replicators on a task, and the time that it is expected to take.

    Attributes:
        ledgers: in the task when it was published; 0: not known.
        not_mended: ledgers that could not be repaired in full.
        places: fragment replicas that were checked.
        batches, copied_bytes: copied to bookies.
        expected_bytes: about how much was to be copied when the task was published; ``None``: not known.
        bytes_per_second: copied since the last renewal; 0 while no replicator works at the task.
        under_way: ledgers that are being repaired.
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
        """The progress of a task at which no replicator works."""
        return self._replace(bytes_per_second=0, under_way=())

    @property
    def seconds_left(self) -> int | None:
        """About how many seconds the rest takes at the present rate; ``None`` if the size or the rate is not known."""
        if self.expected_bytes is None or not self.bytes_per_second:
            return None
        return max(0, self.expected_bytes - self.copied_bytes) // self.bytes_per_second

    def as_json(self) -> dict[str, object]:
        """The JSON object in the task's record."""
        return {**self._asdict(), "under_way": [each._asdict() for each in self.under_way]}


NOTHING_KNOWN: Final = TaskProgress()


def decode_progress(found: Any) -> TaskProgress:
    """Decode what ``as_json`` returned.

    ``NOTHING_KNOWN`` if it is absent or of another shape, as a later version may write it: the task is still done.
    """
    try:
        return NOTHING_KNOWN if found is None else _progress(found)
    except DECODE_ERRORS:
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


def sum_progress(tasks: Iterable[TaskProgress]) -> TaskProgress:
    """The total of several tasks. A number that is not known for one of them is not known for the total."""
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
