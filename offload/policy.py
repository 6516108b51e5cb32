"""What to archive, and how to pack it: decided from metadata alone, without reading an entry.

A ledger that is large enough gets an object of its own. Smaller ones share a *set object*, in the order of
their ids, since each object costs requests whatever its size. A set that is not full yet waits for more
ledgers, but no longer than its oldest member may.

The same packing serves compaction: there the ledgers are in objects already, but in too many, or in objects
most of whose ledgers have been deleted since.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Sequence
from collections.abc import Set as AbstractSet
from typing import Final, NamedTuple

from tallybook.core.config import OffloadSettings
from tallybook.metadata.model import LedgerMetadata
from tallybook.metadata.transactions import is_pending, is_staged

CLOCKS_DIFFER_MS: Final = 60_000
"""What seems to be made later than that from now was made by a clock that was wrong, and counts as old."""


OFFLOAD_AFTER: Final = "tallybook.offload-after-s"
"""Key, among a ledger's custom metadata, of the age in seconds at which it may go, in place of the offloader's."""
_MOST_DIGITS: Final = 10


class Due(NamedTuple):
    """A ledger that may be archived now, or that compaction may move."""

    ledger_id: int
    length_bytes: int
    created_at_ms: int
    in_object: str | None
    """Id of the object that holds it."""
    min_age_s: int | None = None
    """Age at which it may go, if it has one of its own."""


class PlannedObject(NamedTuple):
    """An object to be written: its ledgers, in the order of their ids."""

    ledgers: tuple[Due, ...]

    @property
    def length_bytes(self) -> int:
        """Payload bytes of all ledgers."""
        return sum(ledger.length_bytes for ledger in self.ledgers)


def due(ledgers: Iterable[LedgerMetadata], settings: OffloadSettings, now_ms: int) -> list[Due]:
    """Those that wait (``waiting``) and that nobody is at, in the order of their ids.

    A ledger whose attempt was begun less than ``attempt_ttl`` ago is left to whoever makes it.
    """
    ttl_ms = settings.attempt_ttl_s * 1000
    return sorted(
        _due(metadata)
        for metadata in waiting(ledgers, settings, now_ms)
        if metadata.archiving is None or metadata.archiving.is_dead(now_ms, ttl_ms)
    )


def waiting(ledgers: Iterable[LedgerMetadata], settings: OffloadSettings, now_ms: int) -> list[LedgerMetadata]:
    """Closed ledgers that are in no object, and that the policy lets go.

    Those of a transaction that is not committed wait for it, and those that are on their way into a stream go with its
    segments: a bucket holds nothing that nobody may see.
    """
    return [
        metadata
        for metadata in ledgers
        if metadata.closed
        and metadata.archived is None
        and metadata.length >= settings.min_bytes
        and _age_ms(metadata.created_at_ms, now_ms) >= _or(_own_min_age_s(metadata), settings) * 1000
        and not (is_pending(metadata) or is_staged(metadata))
    ]


def lets_go_at_ms(metadata: LedgerMetadata, settings: OffloadSettings) -> int:
    """When a ledger is old enough."""
    return metadata.created_at_ms + _or(_own_min_age_s(metadata), settings) * 1000


def pack(ledgers: Sequence[Due], settings: OffloadSettings, now_ms: int) -> list[PlannedObject]:
    """Objects for ledgers that are in none. Small ones that are to wait for more are in no object."""
    planned = [PlannedObject((ledger,)) for ledger in ledgers if ledger.length_bytes >= settings.own_object_bytes]
    for group in _groups([ledger for ledger in ledgers if ledger.length_bytes < settings.own_object_bytes], settings):
        waited_s = max(
            _age_ms(ledger.created_at_ms, now_ms) / 1000 - _or(ledger.min_age_s, settings) for ledger in group
        )
        if _full(group, settings) or waited_s >= settings.max_set_wait_s:
            planned.append(PlannedObject(tuple(group)))
    return planned


def compact(
    ledgers: Iterable[LedgerMetadata],
    keys: Container[str],
    settings: OffloadSettings,
    dead: AbstractSet[str] = frozenset(),
) -> list[PlannedObject]:
    """Objects that take the place of others: of several small ones, and of each that is mostly dead.

    Args:
        ledgers: all that may move.
        keys: what the bucket holds, as it lists it.
        dead: those objects that are mostly dead (``dead_space.py``): worth writing anew, be it without any other.
    """
    by_key: dict[str, list[Due]] = {}
    rewritten: set[str] = set()
    for metadata in ledgers:
        if metadata.archived is not None and metadata.archiving is None:
            by_key.setdefault(metadata.archived.key, []).append(_due(metadata))
            if metadata.archived.key in dead:
                rewritten.add(metadata.archived.object_id)
    small: list[Due] = []
    for key, members in by_key.items():
        alive = sum(ledger.length_bytes for ledger in members)
        if key in keys and (alive < settings.compact_below_bytes or key in dead):
            small += members
    planned = []
    for group in _groups(sorted(small), settings):
        sources = {ledger.in_object for ledger in group}
        # One object that becomes one object would be work for nothing, unless that is smaller.
        if len(sources) > 1 or sources <= rewritten:
            planned.append(PlannedObject(tuple(group)))
    return planned


def releasable(ledgers: Iterable[LedgerMetadata], settings: OffloadSettings, now_ms: int) -> list[LedgerMetadata]:
    """Archived ledgers whose copies at the bookies have been kept for long enough."""
    if settings.keep_copies:
        return []
    return [
        metadata
        for metadata in ledgers
        if metadata.archived is not None
        and not metadata.copies_released
        and now_ms - metadata.archived.archived_at_ms >= settings.deletion_lag_s * 1000
    ]


def dead_attempts(ledgers: Iterable[LedgerMetadata], settings: OffloadSettings, now_ms: int) -> list[LedgerMetadata]:
    """Ledgers whose attempt nobody is believed to be at any more.

    Until it is given up, the object that it names has an owner, and the ledger is not moved.
    """
    return [
        metadata
        for metadata in ledgers
        if metadata.archiving is not None and metadata.archiving.is_dead(now_ms, settings.attempt_ttl_s * 1000)
    ]


def planned_of(ledgers: Iterable[LedgerMetadata]) -> PlannedObject:
    """An object for just these ledgers, wherever they are."""
    return PlannedObject(tuple(sorted(map(_due, ledgers))))


def _age_ms(made_at_ms: int, now_ms: int) -> float:
    """How long ago that was; endlessly long for what is made much later than now, and would never grow old."""
    age_ms = now_ms - made_at_ms
    return math.inf if age_ms < -CLOCKS_DIFFER_MS else max(age_ms, 0)


def _due(metadata: LedgerMetadata) -> Due:
    in_object = metadata.archived.object_id if metadata.archived else None
    return Due(metadata.ledger_id, metadata.length, metadata.created_at_ms, in_object, _own_min_age_s(metadata))


def _own_min_age_s(metadata: LedgerMetadata) -> int | None:
    """What the ledger itself says; custom metadata are anybody's, so what is no number says nothing."""
    value = metadata.custom.get(OFFLOAD_AFTER, b"")
    return int(value) if value.isdigit() and len(value) <= _MOST_DIGITS else None


def _or(min_age_s: int | None, settings: OffloadSettings) -> int:
    return settings.min_age_s if min_age_s is None else min_age_s


def _groups(ledgers: Sequence[Due], settings: OffloadSettings) -> list[list[Due]]:
    """Neighbours, as many as fit one object."""
    groups: list[list[Due]] = []
    size = 0
    for ledger in ledgers:
        fits = size + ledger.length_bytes <= settings.set_object_bytes
        if not groups or not fits or len(groups[-1]) >= settings.set_object_ledgers:
            groups.append([])
            size = 0
        groups[-1].append(ledger)
        size += ledger.length_bytes
    return groups


def _full(group: Sequence[Due], settings: OffloadSettings) -> bool:
    size = sum(ledger.length_bytes for ledger in group)
    # Half full is worth an object: the next ledger may just not have fitted.
    return 2 * size >= settings.set_object_bytes or len(group) >= settings.set_object_ledgers
