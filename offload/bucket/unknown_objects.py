"""Reads objects that no metadata names, to tell whether their ledgers are known, recorded as deleted, or neither.

The manifest shows which ledgers are missing in the metadata. If it is missing or unreadable, only the objects show it.
Objects left by failed attempts, compaction and deletions are explained: their ledgers exist, or are recorded as
deleted. Other objects may be the last copy of a ledger, or belong to another cluster. Before a removal, the object is
read again and its ledgers must be in other objects that exist.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Final, TypeVar

from tallybook.archive.catalog import ledgers_in
from tallybook.archive.format.schema import ledger_ids_in
from tallybook.archive.objects.port import ObjectInfo, ObjectStore
from tallybook.archive.objects.probe import OBJECT_ERRORS, ObjectPass, RequestOrder
from tallybook.core.errors import DamagedFile, ObjectDamaged, ObjectMissing
from tallybook.core.ids import NO_IDENTITY
from tallybook.metadata.ledger.model import LedgerMetadata
from tallybook.metadata.store import Deletion, MetadataStore
from tallybook.runtime.tasks import run_together

from .ledger_locations import existing_metadata, ledger_in_need, unknown_ledger

CONCURRENT_READS: Final = 32
"""Concurrent reads of the metadata store, or of the bucket."""

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Doubt:
    """Why an object is not explained."""

    why: str
    unread: bool = False
    """The object is unreadable: its content is unknown."""


async def unexplained(
    store: ObjectStore,
    metadata: MetadataStore,
    ledgers: Mapping[int, LedgerMetadata],
    objects: Sequence[ObjectInfo],
    turns: RequestOrder,
    counted: Collection[int] = (),
    named: Mapping[str, Collection[int]] = MappingProxyType({}),
    limit: int | None = None,
) -> dict[str, Doubt]:
    """Keys of the objects that are not explained, with the reason; see ``unknown_ledger``.

    Args:
        ledgers: all existing ledgers, read after ``objects`` were listed.
        turns: order of requests over several passes.
        counted: ledgers that the manifest counts.
        named: objects named in the manifest so far, with the ledgers that have counted in each. These were verified
            once: if one is unreadable now, only it can tell whether a ledger that counts elsewhere is the same.
        limit: stop after so many.

    Raises:
        ArchiveUnavailable, ArchiveDenied: the bucket does not answer.
        MetadataUnavailable: the records of deletions are unreadable.
    """

    asked = ObjectPass(store)

    async def examine(found: ObjectInfo) -> Doubt | None:
        try:
            held = await _held_by(store, found, asked, turns)
        except _Unread as unread:
            if found.key not in named:
                # Failed attempts leave damaged objects. The key has the ids of their ledgers.
                if not unread.damaged:
                    return Doubt(unread.why, unread=True)
                held = dict.fromkeys(ledger_ids_in(found.key), NO_IDENTITY)
            else:
                elsewhere = any(each in counted for each in named[found.key])
                return Doubt(unread.why, unread=True) if elsewhere else None
        deletions = await _deletions_in(metadata, held, ledgers)
        ledger_id = unknown_ledger(held.items(), ledgers, deletions, counted, named=found.key in named)
        if ledger_id is None:
            return None
        return Doubt(f"the metadata do not know ledger {ledger_id} of {found.key}, nor that it was deleted")

    return await _examine_all(objects, examine, turns, limit)


async def needed(
    store: ObjectStore,
    metadata: MetadataStore,
    ledgers: Mapping[int, LedgerMetadata],
    objects: Sequence[ObjectInfo],
    turns: RequestOrder,
    counted: Collection[int],
    sizes: Mapping[str, int],
) -> dict[str, str]:
    """Objects that no longer count but may be the last copy of a ledger, with the reason; see ``ledger_in_need``.

    Raises:
        ArchiveUnavailable, ArchiveDenied: the bucket does not answer.
        MetadataUnavailable: the records of deletions are unreadable.
    """

    asked = ObjectPass(store)

    async def examine(found: ObjectInfo) -> str | None:
        try:
            held = await _held_by(store, found, asked, turns)
        except _Unread as unread:
            if not unread.damaged:
                return unread.why
            held = dict.fromkeys(ledger_ids_in(found.key), NO_IDENTITY)
        deletions = await _deletions_in(metadata, held, ledgers)
        ledger_id = ledger_in_need(held.items(), ledgers, deletions, counted, sizes)
        return None if ledger_id is None else f"ledger {ledger_id} of {found.key} is in no other object that is there"

    return await _examine_all(objects, examine, turns)


async def _deletions_in(
    metadata: MetadataStore, held: Mapping[int, bytes], ledgers: Mapping[int, LedgerMetadata]
) -> dict[int, Deletion | None]:
    """Records of deletions of the ledgers of an object that do not exist."""
    return await deletions_of(metadata, [each for each in held if existing_metadata(each, held[each], ledgers) is None])


async def _examine_all(
    objects: Sequence[ObjectInfo],
    examine: Callable[[ObjectInfo], Awaitable[_T | None]],
    turns: RequestOrder,
    limit: int | None = None,
) -> dict[str, _T]:
    found: dict[str, _T] = {}

    async def one(each: ObjectInfo) -> None:
        why = await examine(each)
        if why is not None:
            found[each.key] = why

    ordered = turns.order(objects, key=lambda each: each.key)
    for at in range(0, len(ordered), CONCURRENT_READS):
        await run_together(*map(one, ordered[at : at + CONCURRENT_READS]))
        if limit is not None and len(found) >= limit:
            break
    return found


class _Unread(Exception):
    """The content of an object is unknown."""

    def __init__(self, why: str, *, damaged: bool) -> None:
        super().__init__(why)
        self.why = why
        self.damaged = damaged


async def _held_by(store: ObjectStore, found: ObjectInfo, asked: ObjectPass, turns: RequestOrder) -> dict[int, bytes]:
    """The ledgers in an object, with their identities.

    Raises:
        _Unread: unknown, since it is damaged, or the store does not return it.
        ArchiveUnavailable, ArchiveDenied: the bucket does not answer.
    """
    try:
        held = await asked.ask(partial(ledgers_in, store, found))
    except ObjectMissing:
        return {}  # removed since the listing
    except (DamagedFile, ObjectDamaged) as error:
        raise _Unread(f"{found.key} is damaged: {error.message}", damaged=True) from error
    except OBJECT_ERRORS as error:
        if not await asked.concerns_one_object(error):
            raise
        if not asked.ended:
            turns.failed(found.key)
        raise _Unread(f"the ledgers in {found.key} are not known: {error.message}", damaged=False) from error
    return {each.metadata.ledger_id: each.metadata.identity for each in held}


async def deletions_of(metadata: MetadataStore, ledger_ids: Iterable[int]) -> dict[int, Deletion | None]:
    """Records of deletions of these ledgers.

    Raises:
        MetadataUnavailable: the metadata store does not answer.
    """
    asked, found = list(ledger_ids), dict[int, Deletion | None]()

    async def one(ledger_id: int) -> None:
        found[ledger_id] = await metadata.deletion(ledger_id)

    for at in range(0, len(asked), CONCURRENT_READS):
        await run_together(*map(one, asked[at : at + CONCURRENT_READS]))
    return found
