"""Policy: which ledgers are archived, and how they are packed into objects. Decided from metadata alone.

A ledger that is large enough gets its own object. Smaller ones share a *set object*, ordered by id, since each object
costs requests regardless of its size. A set that is not full waits for more ledgers, but no longer than its oldest
member may wait.

Compaction uses the same packing for ledgers that are in too many objects, or in objects with mostly deleted ledgers.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Sequence
from collections.abc import Set as AbstractSet
from typing import Final, NamedTuple

from tallybook.core.settings import OffloadSettings
from tallybook.metadata.ledger.archived import OFFLOAD_AFTER
from tallybook.metadata.ledger.model import LedgerMetadata
from tallybook.metadata.transactions import is_pending, is_staged

CLOCKS_DIFFER_MS: Final = 60_000
"""Clock tolerance: a creation time further in the future comes from a wrong clock, and counts as old."""


_MAX_DIGITS: Final = 10


class Due(NamedTuple):
    """A ledger that may be archived, or moved by compaction."""

    ledger_id: int
    length_bytes: int
    created_at_ms: int
    in_object: str | None
    """Id of the object that contains it."""
    min_age_s: int | None = None
    """Its own minimum age for archiving, if set."""


class PlannedObject(NamedTuple):
    """An object to be written: its ledgers, ordered by id."""

    ledgers: tuple[Due, ...]

    @property
    def length_bytes(self) -> int:
        """Payload bytes of all ledgers."""
        return sum(ledger.length_bytes for ledger in self.ledgers)


def due(ledgers: Iterable[LedgerMetadata], settings: OffloadSettings, now_ms: int) -> list[Due]:
    """Ledgers that are due (``waiting``) and have no attempt in progress, ordered by id.

    A ledger whose attempt began less than ``attempt_ttl`` ago is left to that attempt.
    """
    ttl_ms = settings.attempt_ttl_s * 1000
    return sorted(
        _due(metadata)
        for metadata in waiting(ledgers, settings, now_ms)
        if metadata.archiving is None or metadata.archiving.is_dead(now_ms, ttl_ms)
    )


def waiting(ledgers: Iterable[LedgerMetadata], settings: OffloadSettings, now_ms: int) -> list[LedgerMetadata]:
    """Closed ledgers that are not archived, and that the policy permits to archive.

    Ledgers of an uncommitted transaction wait for the commit, and ledgers staged for a stream are archived as segments
    of the stream: a bucket contains visible ledgers only.
    """
    return [
        metadata
        for metadata in ledgers
        if metadata.closed
        and metadata.archived is None
        and metadata.length >= settings.min_bytes
        and _age_ms(metadata.created_at_ms, now_ms) >= _min_age_s(_own_min_age_s(metadata), settings) * 1000
        and not (is_pending(metadata) or is_staged(metadata))
    ]


def due_at_ms(metadata: LedgerMetadata, settings: OffloadSettings) -> int:
    """When a ledger is old enough, in milliseconds since the epoch."""
    return metadata.created_at_ms + _min_age_s(_own_min_age_s(metadata), settings) * 1000


def pack(ledgers: Sequence[Due], settings: OffloadSettings, now_ms: int) -> list[PlannedObject]:
    """Objects for ledgers that are not archived. Omits small ledgers that should wait for more."""
    planned = [PlannedObject((ledger,)) for ledger in ledgers if ledger.length_bytes >= settings.own_object_bytes]
    for group in _groups([ledger for ledger in ledgers if ledger.length_bytes < settings.own_object_bytes], settings):
        waited_s = max(
            _age_ms(ledger.created_at_ms, now_ms) / 1000 - _min_age_s(ledger.min_age_s, settings) for ledger in group
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
    """Objects that replace others: several small ones, and each sparse one.

    Args:
        ledgers: all that may move.
        keys: objects in the bucket, as listed.
        dead: sparse objects (``dead_space.py``): to be rewritten even without others.
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
        # Rewriting one object into one object is useless, unless it becomes smaller.
        if len(sources) > 1 or sources <= rewritten:
            planned.append(PlannedObject(tuple(group)))
    return planned


def releasable(ledgers: Iterable[LedgerMetadata], settings: OffloadSettings, now_ms: int) -> list[LedgerMetadata]:
    """Archived ledgers whose copies at bookies have been kept long enough.

    ``Offloader._release`` then permits the bookies to drop them; ``bookie/gc/plan.py`` does when a collector asks.
    """
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
    """Ledgers with an abandoned attempt.

    Until it is ended, the object that it names has an owner, and the ledger is not moved.
    """
    return [
        metadata
        for metadata in ledgers
        if metadata.archiving is not None and metadata.archiving.is_dead(now_ms, settings.attempt_ttl_s * 1000)
    ]


def planned_of(ledgers: Iterable[LedgerMetadata]) -> PlannedObject:
    """An object for these ledgers, archived or not."""
    return PlannedObject(tuple(sorted(map(_due, ledgers))))


def _age_ms(made_at_ms: int, now_ms: int) -> float:
    """Age; infinite for a time far in the future, which would never grow old."""
    age_ms = now_ms - made_at_ms
    return math.inf if age_ms < -CLOCKS_DIFFER_MS else max(age_ms, 0)


def _due(metadata: LedgerMetadata) -> Due:
    in_object = metadata.archived.object_id if metadata.archived else None
    return Due(metadata.ledger_id, metadata.length, metadata.created_at_ms, in_object, _own_min_age_s(metadata))


def _own_min_age_s(metadata: LedgerMetadata) -> int | None:
    """The ledger's own setting. Any client may write custom metadata, so an invalid number is ignored."""
    value = metadata.custom.get(OFFLOAD_AFTER, b"")
    return int(value) if value.isdigit() and len(value) <= _MAX_DIGITS else None


def _min_age_s(min_age_s: int | None, settings: OffloadSettings) -> int:
    return settings.min_age_s if min_age_s is None else min_age_s


def _groups(ledgers: Sequence[Due], settings: OffloadSettings) -> list[list[Due]]:
    """Group consecutive ledgers that fit one object."""
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
    # Half full is enough: the next ledger may just not have fitted.
    return 2 * size >= settings.set_object_bytes or len(group) >= settings.set_object_ledgers


class WaitingSince:
    """When each waiting ledger was first seen.

    Metadata has the creation time of a ledger, not the time of its close. So a ledger that an offloader has not seen
    before waits since now. For ledgers found by the first pass that is unknown, and the longest possible time is
    assumed: a backlog does not appear young because the leader changed.
    """

    def __init__(self, settings: OffloadSettings) -> None:
        self._settings = settings
        self._since_ms: dict[int, int] | None = None

    def forget(self) -> None:
        """Reset: ledgers may have come while another offloader led."""
        self._since_ms = None

    def update(self, waiting: Iterable[LedgerMetadata], now_ms: int) -> int:
        """Replace the set of waiting ledgers; returns for how many seconds the oldest has waited."""
        known = self._since_ms
        self._since_ms = {
            metadata.ledger_id: min(now_ms, due_at_ms(metadata, self._settings))
            if known is None
            else known.get(metadata.ledger_id, now_ms)
            for metadata in waiting
        }
        return (now_ms - min(self._since_ms.values(), default=now_ms)) // 1000
