"""What a query reads, settled on the driver: options in, a snapshot and partitions out."""

from __future__ import annotations

import asyncio
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Final

from tallybook.archive.entry_range import EntryRange
from tallybook.archive.index_codec import Directory
from tallybook.core.errors import (
    ArchiveKeyMissing,
    BookieUnavailable,
    EntryAbsent,
    InvalidConfig,
    NoSuchLedger,
    ObjectDamaged,
    ObjectMissing,
    RequestTimeout,
    Unauthorized,
)
from tallybook.core.keys import key_fits, ledger_key
from tallybook.metadata.model import LedgerMetadata
from tallybook.metadata.transactions import is_staged
from tallybook.runtime.tasks import run_together

from .gaps import Gap
from .options import ReadOptions
from .places import LedgerPlace, lookups
from .plan import EntryPartition, Stretch, partitions_of, stretch_of
from .snapshot import Snapshot

MOST_NAMED: Final = 10_000
"""Ledgers that are asked for one by one, and have to exist. Of more, those are read that there are."""

CONCURRENT_ENDS: Final = 16
"""Open ledgers whose bookies are asked at once."""

END_SECONDS: Final = 30
"""How long the bookies of an open ledger may take to say what is confirmed."""


async def settle(place: LedgerPlace, options: ReadOptions) -> tuple[Snapshot, Mapping[int, LedgerMetadata], list[Gap]]:
    """The snapshot that a query reads, the metadata of its ledgers, and what of it is gone already.

    Raises:
        InvalidConfig: the snapshot is of another cluster.
        NoSuchLedger: a ledger that was asked for by its id does not exist.
        Unauthorized: a ledger has a password, and it was not given.
        BookieUnavailable, RequestTimeout: the bookies of an open ledger do not say what is confirmed.
        ObjectDamaged: objects of a bucket cannot be understood that have, or may have, ledgers that are wanted, and
            data may not be missing; or a ledger that was asked for by its id is in one.
    """
    if options.fail_on_data_loss:
        _check_damaged(place, options)
    if isinstance(options.snapshot, Snapshot):
        return await _of_snapshot(place, options, options.snapshot)
    # First: what is in view was written and closed before, so that no ledger of a transaction can be missed below.
    view = await place.view()
    named = options.ledgers is not None and options.ledgers.count <= MOST_NAMED
    found = await lookups(place, options.ledgers if named and options.ledgers else await _listed(place, options))
    wanted = []
    for ledger_id, metadata in found.items():
        if metadata is None:
            if named:
                raise _not_there(place, ledger_id)
            continue  # deleted since the listing
        if view.sees(metadata) and is_wanted(metadata, options):
            authorise(metadata, options.place.password)
            wanted.append(metadata)
    ends = await _ends_of_open(place, [metadata for metadata in wanted if not metadata.closed], must_exist=named)
    ranges, known = [], {}
    for metadata in wanted:
        end = metadata.last_entry_id if metadata.closed else ends[metadata.ledger_id]
        last = min(options.last_entry, end)
        if options.first_entry <= last:
            known[metadata.ledger_id] = metadata
            ranges.append(EntryRange(metadata.ledger_id, options.first_entry, last))
    return Snapshot(place.cluster_id, tuple(ranges), options.written), known, []


def _check_damaged(place: LedgerPlace, options: ReadOptions) -> None:
    """Fail a query that may want what is in an object which cannot be understood."""
    wanted: Container[int] | None = options.ledgers
    if isinstance(options.snapshot, Snapshot):
        wanted = {each.ledger_id for each in options.snapshot.ranges}
    concerned = []
    for key, why in place.damaged.items():
        lost = place.lost_with(key)
        if lost is None or (lost if wanted is None else any(ledger_id in wanted for ledger_id in lost)):
            concerned.append(f"{key}: {why}")
    if concerned:
        raise ObjectDamaged(
            f"{len(concerned)} objects of the bucket cannot be understood that have ledgers which are wanted, or may "
            f"have, the first is {concerned[0]} (option failOnDataLoss=false reads what is in the others)"
        )


def _not_there(place: LedgerPlace, ledger_id: int) -> NoSuchLedger | ObjectDamaged:
    """The error of a query that asks for a ledger by its id, and it is not there."""
    gap = place.missing(ledger_id, 0, 0)
    if gap.kind == "trimmed":
        return NoSuchLedger(f"ledger {ledger_id} does not exist")
    damaged = any(ledger_id in (place.lost_with(key) or ()) for key in place.damaged)
    return (ObjectDamaged if damaged else NoSuchLedger)(f"ledger {ledger_id}: {gap.reason}")


async def _ends_of_open(place: LedgerPlace, ledgers: Iterable[LedgerMetadata], *, must_exist: bool) -> dict[int, int]:
    """The last entry of each open ledger that may be read; -1 for none."""
    turns, ends = asyncio.Semaphore(CONCURRENT_ENDS), dict[int, int]()

    async def ask(metadata: LedgerMetadata) -> None:
        async with turns:
            try:
                ends[metadata.ledger_id] = await _confirmed(place, metadata)
            except NoSuchLedger:
                if must_exist:
                    raise
                ends[metadata.ledger_id] = -1  # deleted since the listing

    await run_together(*map(ask, ledgers))
    return ends


async def _confirmed(place: LedgerPlace, metadata: LedgerMetadata) -> int:
    hint = "option openLedgers=false leaves open ledgers out"
    try:
        async with asyncio.timeout(END_SECONDS):
            return await place.confirmed(metadata)
    except BookieUnavailable as error:
        raise BookieUnavailable(
            f"ledger {metadata.ledger_id} is open, and how far it may be read is not known: {error.message} ({hint})"
        ) from error
    except TimeoutError as error:
        raise RequestTimeout(
            f"ledger {metadata.ledger_id} is open, and its bookies have not said within {END_SECONDS} s how far it may "
            f"be read ({hint})"
        ) from error


async def _listed(place: LedgerPlace, options: ReadOptions) -> list[int]:
    """The ledgers that there are, of those that are asked for."""
    return [each for each in await place.ledger_ids() if options.ledgers is None or each in options.ledgers]


async def _of_snapshot(
    place: LedgerPlace, options: ReadOptions, snapshot: Snapshot
) -> tuple[Snapshot, Mapping[int, LedgerMetadata], list[Gap]]:
    if snapshot.cluster_id and place.cluster_id and snapshot.cluster_id != place.cluster_id:
        raise InvalidConfig(f"the snapshot is of cluster {snapshot.cluster_id}, and this is {place.cluster_id}")
    found = await lookups(place, [each.ledger_id for each in snapshot.ranges])
    known = {ledger_id: metadata for ledger_id, metadata in found.items() if metadata is not None}
    for metadata in known.values():
        authorise(metadata, options.place.password)
    for each in snapshot.ranges:
        of_ledger = found[each.ledger_id]
        if of_ledger is not None and of_ledger.closed and each.last > of_ledger.last_entry_id:
            raise EntryAbsent(
                f"ledger {each.ledger_id} ends at entry {of_ledger.last_entry_id}, and the snapshot wants {each.last}: "
                "is it of another cluster?"
            )
    gaps = [place.missing(*each) for each in snapshot.ranges if each.ledger_id not in known]
    if gaps and options.fail_on_data_loss:
        raise gaps[0].error()
    kept = [ledger_id for ledger_id, metadata in known.items() if is_wanted(metadata, options)]
    return snapshot.only(kept), known, gaps


def is_wanted(metadata: LedgerMetadata, options: ReadOptions) -> bool:
    """Whether a ledger lies where the query looks, and is as far as it wants."""
    if is_staged(metadata):
        return False
    if options.tier == "archive":
        return metadata.archived is not None
    if options.tier == "bookies":
        return not metadata.copies_released and (metadata.closed or options.open_ledgers)
    return metadata.closed or options.open_ledgers


def authorise(metadata: LedgerMetadata, password: bytes) -> None:
    """See to it that only who has the password of a ledger reads it here.

    Raises:
        Unauthorized: it does not fit, or none was given.
    """
    if metadata.key_verifier and not key_fits(ledger_key(password, metadata.key_salt), metadata.key_verifier):
        raise Unauthorized(f"ledger {metadata.ledger_id} has a password, and option password does not fit it")


async def cut(
    place: LedgerPlace, options: ReadOptions, snapshot: Snapshot, known: Mapping[int, LedgerMetadata]
) -> list[EntryPartition]:
    """The partitions of a snapshot.

    Raises:
        ArchiveUnavailable, ArchiveDenied: the index of a large object cannot be read.
    """
    from_bookies = options.tier == "bookies"
    stretches = [stretch_of(each, known[each.ledger_id], bookies_only=from_bookies) for each in snapshot.ranges]
    cuts = await row_groups(place, [each for each in stretches if each.payload_bytes > options.partition_bytes])
    return partitions_of(
        stretches,
        lambda stretch: cuts.get(stretch.ledger_id, ()),
        max_bytes=options.partition_bytes,
        min_partitions=options.min_partitions,
        written=snapshot.written,
        cluster_id=place.cluster_id,
    )


async def row_groups(place: LedgerPlace, stretches: Iterable[Stretch]) -> dict[int, Sequence[int]]:
    """Where the row groups of large ledgers begin, by ledger."""
    found: dict[int, Sequence[int]] = {}
    for stretch in stretches:
        if stretch.receipt is None:
            continue
        try:
            directory = await place.directory(stretch.receipt)
        except (ObjectMissing, ObjectDamaged, ArchiveKeyMissing):
            continue  # the task that reads it will see
        found[stretch.ledger_id] = _firsts(directory, stretch.ledger_id)
    return found


def _firsts(directory: Directory, ledger_id: int) -> list[int]:
    return [run.first_entry_id for held in directory.ledgers if held.ledger_id == ledger_id for run in held.runs]
