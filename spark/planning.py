"""What a query reads, settled on the driver: options in, a snapshot and partitions out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from tallybook.archive.entry_range import EntryRange
from tallybook.archive.index_codec import Directory
from tallybook.core.errors import EntryAbsent, InvalidConfig, NoSuchLedger, ObjectDamaged, ObjectMissing, Unauthorized
from tallybook.core.keys import key_fits, ledger_key
from tallybook.metadata.model import LedgerMetadata

from .gaps import Gap
from .options import ReadOptions
from .places import LedgerPlace, lookups
from .plan import EntryPartition, Stretch, partitions_of, stretch_of
from .snapshot import Snapshot

MOST_NAMED: Final = 10_000
"""Ledgers that are asked for one by one, and have to exist. Of more, those are read that there are."""


async def settle(place: LedgerPlace, options: ReadOptions) -> tuple[Snapshot, Mapping[int, LedgerMetadata], list[Gap]]:
    """The snapshot that a query reads, the metadata of its ledgers, and what of it is gone already.

    Raises:
        InvalidConfig: the snapshot is of another cluster.
        NoSuchLedger: a ledger that was asked for by its id does not exist.
        Unauthorized: a ledger has a password, and it was not given.
        ObjectDamaged: a bucket has objects that cannot be understood, and data may not be missing.
    """
    if place.damaged and options.fail_on_data_loss:
        key, why = next(iter(place.damaged.items()))
        raise ObjectDamaged(
            f"{len(place.damaged)} objects of the bucket cannot be understood, the first is {key}: {why} (option "
            "failOnDataLoss=false reads what is in the others)"
        )
    if options.snapshot is not None:
        return await _of_snapshot(place, options, options.snapshot)
    # First: what is in view was written and closed before, so that no ledger of a transaction can be missed below.
    view = await place.view()
    named = options.ledgers is not None and options.ledgers.count <= MOST_NAMED
    found = await lookups(place, options.ledgers if named and options.ledgers else await _listed(place, options))
    ranges, known = [], {}
    for ledger_id, metadata in found.items():
        if metadata is None:
            if named:
                raise NoSuchLedger(f"ledger {ledger_id} does not exist")
            continue  # deleted since the listing
        if not view.sees(metadata) or not is_wanted(metadata, options):
            continue
        authorise(metadata, options.place.password)
        last = min(options.last_entry, await place.confirmed(metadata))
        if options.first_entry <= last:
            known[ledger_id] = metadata
            ranges.append(EntryRange(ledger_id, options.first_entry, last))
    return Snapshot(place.cluster_id, tuple(ranges), options.written), known, []


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
    gaps = [Gap.of_deleted(*each) for each in snapshot.ranges if each.ledger_id not in known]
    if gaps and options.fail_on_data_loss:
        raise gaps[0].error()
    kept = [ledger_id for ledger_id, metadata in known.items() if is_wanted(metadata, options)]
    return snapshot.only(kept), known, gaps


def is_wanted(metadata: LedgerMetadata, options: ReadOptions) -> bool:
    """Whether a ledger lies where the query looks, and is as far as it wants."""
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
    cuts = await _row_groups(place, [each for each in stretches if each.payload_bytes > options.partition_bytes])
    return partitions_of(
        stretches,
        lambda stretch: cuts.get(stretch.ledger_id, ()),
        max_bytes=options.partition_bytes,
        min_partitions=options.min_partitions,
        written=snapshot.written,
    )


async def _row_groups(place: LedgerPlace, stretches: Iterable[Stretch]) -> dict[int, Sequence[int]]:
    """Where the row groups of large ledgers begin, by ledger."""
    found: dict[int, Sequence[int]] = {}
    for stretch in stretches:
        if stretch.receipt is None:
            continue
        try:
            directory = await place.directory(stretch.receipt)
        except (ObjectMissing, ObjectDamaged):
            continue  # the task that reads it will see
        found[stretch.ledger_id] = _firsts(directory, stretch.ledger_id)
    return found


def _firsts(directory: Directory, ledger_id: int) -> list[int]:
    return [run.first_entry_id for held in directory.ledgers if held.ledger_id == ledger_id for run in held.runs]
