"""What the ledgers in objects that no metadata name are to the metadata: known, deleted on record, or neither.

The manifest says which ledgers are missing from the metadata. Where it is gone or cannot be read, only the objects
themselves say so. What failed attempts, compaction and deletions have left is explained: its ledgers are there, or on
record as deleted. Other objects are perhaps all that is left of a ledger, or another cluster's. Before an object is
removed, it is asked again, and more: its ledgers have to be in other objects, which have to be there.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Final, TypeVar

from tallybook.archive.catalog import ledgers_in
from tallybook.archive.objects.port import ObjectInfo, ObjectStore
from tallybook.archive.objects.probe import OBJECT_ERRORS, ObjectPass, Turns
from tallybook.archive.schema import ledger_ids_in
from tallybook.core.errors import DamagedFile, ObjectDamaged, ObjectMissing
from tallybook.core.ids import NO_IDENTITY
from tallybook.metadata.model import LedgerMetadata
from tallybook.metadata.store import Deletion, MetadataStore
from tallybook.runtime.tasks import run_together

from .standing import living, needs, unaccounted

CONCURRENT_READS: Final = 32
"""Of the metadata store, or of the bucket."""

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Doubt:
    """Why an object is not explained."""

    why: str
    unread: bool = False
    """It could not be read: what it holds is not known."""


async def unexplained(
    store: ObjectStore,
    metadata: MetadataStore,
    ledgers: Mapping[int, LedgerMetadata],
    objects: Sequence[ObjectInfo],
    turns: Turns,
    counted: Collection[int] = (),
    named: Mapping[str, Collection[int]] = MappingProxyType({}),
    most: int | None = None,
) -> dict[str, Doubt]:
    """The keys of those of these objects that are not explained, and why; see ``unaccounted``.

    Args:
        ledgers: all that there are, read after ``objects`` were listed.
        turns: of the passes that follow one another.
        counted: ledgers that the manifest counts.
        named: objects that it has named so far, and the ledgers that have counted in each. These were read back once,
            whole: where one cannot be read now, only it can tell whether a ledger that counts elsewhere is the same.
        most: after so many the rest is not looked at.

    Raises:
        ArchiveUnavailable, ArchiveDenied: the bucket does not answer.
        MetadataUnavailable: the metadata store does not say what was deleted.
    """

    asked = ObjectPass(store)

    async def look(found: ObjectInfo) -> Doubt | None:
        try:
            held = await _held_by(store, found, asked, turns)
        except _Unread as unread:
            if found.key not in named:
                # Attempts that failed leave damaged objects. The name says what they were to hold.
                if not unread.damaged:
                    return Doubt(unread.why, unread=True)
                held = dict.fromkeys(ledger_ids_in(found.key), NO_IDENTITY)
            else:
                elsewhere = any(each in counted for each in named[found.key])
                return Doubt(unread.why, unread=True) if elsewhere else None
        deletions = await _deletions_in(metadata, held, ledgers)
        ledger_id = unaccounted(held.items(), ledgers, deletions, counted, named=found.key in named)
        if ledger_id is None:
            return None
        return Doubt(f"the metadata do not know ledger {ledger_id} of {found.key}, nor that it was deleted")

    return await _looked_at(objects, look, turns, most)


async def needed(
    store: ObjectStore,
    metadata: MetadataStore,
    ledgers: Mapping[int, LedgerMetadata],
    objects: Sequence[ObjectInfo],
    turns: Turns,
    counted: Collection[int],
    sizes: Mapping[str, int],
) -> dict[str, str]:
    """Those of these objects, which count no more, that may be the last to have a ledger, and why; see ``needs``.

    Raises:
        ArchiveUnavailable, ArchiveDenied: the bucket does not answer.
        MetadataUnavailable: the metadata store does not say what was deleted.
    """

    asked = ObjectPass(store)

    async def look(found: ObjectInfo) -> str | None:
        try:
            held = await _held_by(store, found, asked, turns)
        except _Unread as unread:
            if not unread.damaged:
                return unread.why
            held = dict.fromkeys(ledger_ids_in(found.key), NO_IDENTITY)
        deletions = await _deletions_in(metadata, held, ledgers)
        ledger_id = needs(held.items(), ledgers, deletions, counted, sizes)
        return None if ledger_id is None else f"ledger {ledger_id} of {found.key} is in no other object that is there"

    return await _looked_at(objects, look, turns)


async def _deletions_in(
    metadata: MetadataStore, held: Mapping[int, bytes], ledgers: Mapping[int, LedgerMetadata]
) -> dict[int, Deletion | None]:
    """The records of deletions of the ledgers of an object that are not living."""
    return await deletions_of(metadata, [each for each in held if living(each, held[each], ledgers) is None])


async def _looked_at(
    objects: Sequence[ObjectInfo],
    look: Callable[[ObjectInfo], Awaitable[_T | None]],
    turns: Turns,
    most: int | None = None,
) -> dict[str, _T]:
    found: dict[str, _T] = {}

    async def one(each: ObjectInfo) -> None:
        why = await look(each)
        if why is not None:
            found[each.key] = why

    ordered = turns.order(objects, key=lambda each: each.key)
    for at in range(0, len(ordered), CONCURRENT_READS):
        await run_together(*map(one, ordered[at : at + CONCURRENT_READS]))
        if most is not None and len(found) >= most:
            break
    return found


class _Unread(Exception):
    """What an object holds is not known."""

    def __init__(self, why: str, *, damaged: bool) -> None:
        super().__init__(why)
        self.why = why
        self.damaged = damaged


async def _held_by(store: ObjectStore, found: ObjectInfo, asked: ObjectPass, turns: Turns) -> dict[int, bytes]:
    """The ledgers in an object, and the identity of each.

    Raises:
        _Unread: that is not known, since it is damaged, or the store does not give it.
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
        raise _Unread(f"what {found.key} holds is not known: {error.message}", damaged=False) from error
    return {each.metadata.ledger_id: each.metadata.identity for each in held}


async def deletions_of(metadata: MetadataStore, ledger_ids: Iterable[int]) -> dict[int, Deletion | None]:
    """The record of the deletion of each of these ledgers.

    Raises:
        MetadataUnavailable: the metadata store does not say.
    """
    asked, found = list(ledger_ids), dict[int, Deletion | None]()

    async def one(ledger_id: int) -> None:
        found[ledger_id] = await metadata.deletion(ledger_id)

    for at in range(0, len(asked), CONCURRENT_READS):
        await run_together(*map(one, asked[at : at + CONCURRENT_READS]))
    return found
