"""Planning of a query over ledgers on the driver: from options to a snapshot, then to partitions."""

from __future__ import annotations

import asyncio
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Final

from tallybook.archive.format.index_codec import IndexRoot
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
from tallybook.core.keys import key_matches, ledger_key
from tallybook.core.ranges import LedgerEntryRange
from tallybook.metadata.ledger.model import LedgerMetadata
from tallybook.metadata.transactions import is_staged
from tallybook.runtime.tasks import run_together

from ..locations import LedgerLocation, read_metadata
from ..options import ReadOptions
from ..query.gaps import EntryGap
from ..query.partitions import EntryPartition, PlannedRange, partitions_of, planned_range_of
from ..query.snapshot import Snapshot

MAX_NAMED_LEDGERS: Final = 10_000
"""Up to this many named ledgers must all exist. Of a larger set, the existing ledgers are read."""

CONCURRENT_ENDS: Final = 16
"""Open ledgers whose last add confirmed is read concurrently."""

END_SECONDS: Final = 30
"""Timeout for reading the last add confirmed of an open ledger."""


async def resolve_snapshot(
    location: LedgerLocation, options: ReadOptions
) -> tuple[Snapshot, Mapping[int, LedgerMetadata], list[EntryGap]]:
    """The snapshot that a query reads, the metadata of its ledgers, and the gaps known already.

    Raises:
        InvalidConfig: the snapshot is of another cluster.
        NoSuchLedger: a named ledger does not exist.
        Unauthorized: a ledger has a password, which was not given.
        BookieUnavailable, RequestTimeout: the last add confirmed of an open ledger cannot be read.
        ObjectDamaged: damaged objects of a bucket have, or may have, wanted ledgers, and ``failOnDataLoss`` is true;
            or a named ledger is in one.
    """
    if options.fail_on_data_loss:
        _check_damaged(location, options)
    if isinstance(options.snapshot, Snapshot):
        return await _of_snapshot(location, options, options.snapshot)
    # Read before the ledgers: a committed transaction's ledgers were closed before, so the listing below has them all.
    view = await location.view()
    named = options.ledgers is not None and options.ledgers.count <= MAX_NAMED_LEDGERS
    found = await read_metadata(
        location, options.ledgers if named and options.ledgers else await _listed(location, options)
    )
    wanted = []
    for ledger_id, metadata in found.items():
        if metadata is None:
            if named:
                raise _not_there(location, ledger_id)
            continue  # deleted after it was listed
        if view.sees(metadata) and is_wanted(metadata, options):
            check_password(metadata, options.location.password)
            wanted.append(metadata)
    ends = await _ends_of_open(location, [metadata for metadata in wanted if not metadata.closed], must_exist=named)
    ranges, known = [], {}
    for metadata in wanted:
        end = metadata.last_entry_id if metadata.closed else ends[metadata.ledger_id]
        last = min(options.last_entry, end)
        if options.first_entry <= last:
            known[metadata.ledger_id] = metadata
            ranges.append(LedgerEntryRange(metadata.ledger_id, options.first_entry, last))
    return Snapshot(location.cluster_id, tuple(ranges), options.written), known, []


def _check_damaged(location: LedgerLocation, options: ReadOptions) -> None:
    """Fail a query that may need a damaged object."""
    wanted: Container[int] | None = options.ledgers
    if isinstance(options.snapshot, Snapshot):
        wanted = {each.ledger_id for each in options.snapshot.ranges}
    concerned = []
    for key, why in location.damaged.items():
        lost = location.lost_with(key)
        if lost is None or (lost if wanted is None else any(ledger_id in wanted for ledger_id in lost)):
            concerned.append(f"{key}: {why}")
    if concerned:
        raise ObjectDamaged(
            f"{len(concerned)} damaged objects of the bucket have, or may have, ledgers of this query; the first: "
            f"{concerned[0]} (option failOnDataLoss=false reads the other objects)"
        )


def _not_there(location: LedgerLocation, ledger_id: int) -> NoSuchLedger | ObjectDamaged:
    """The error for a named ledger that does not exist."""
    gap = location.missing(ledger_id, 0, 0)
    if gap.kind == "trimmed":
        return NoSuchLedger(f"ledger {ledger_id} does not exist")
    damaged = any(ledger_id in (location.lost_with(key) or ()) for key in location.damaged)
    return (ObjectDamaged if damaged else NoSuchLedger)(f"ledger {ledger_id}: {gap.reason}")


async def _ends_of_open(
    location: LedgerLocation, ledgers: Iterable[LedgerMetadata], *, must_exist: bool
) -> dict[int, int]:
    """The last readable entry of each open ledger; -1: none."""
    turns, ends = asyncio.Semaphore(CONCURRENT_ENDS), dict[int, int]()

    async def ask(metadata: LedgerMetadata) -> None:
        async with turns:
            try:
                ends[metadata.ledger_id] = await _confirmed(location, metadata)
            except NoSuchLedger:
                if must_exist:
                    raise
                ends[metadata.ledger_id] = -1  # deleted after it was listed

    await run_together(*map(ask, ledgers))
    return ends


async def _confirmed(location: LedgerLocation, metadata: LedgerMetadata) -> int:
    hint = "option openLedgers=false skips open ledgers"
    try:
        async with asyncio.timeout(END_SECONDS):
            return await location.confirmed(metadata)
    except BookieUnavailable as error:
        raise BookieUnavailable(
            f"ledger {metadata.ledger_id} is open, and its last add confirmed is not known: {error.message} ({hint})"
        ) from error
    except TimeoutError as error:
        raise RequestTimeout(
            f"ledger {metadata.ledger_id} is open, and its bookies did not report the last add confirmed within "
            f"{END_SECONDS} s ({hint})"
        ) from error


async def _listed(location: LedgerLocation, options: ReadOptions) -> list[int]:
    """The existing ledgers among those selected."""
    return [each for each in await location.ledger_ids() if options.ledgers is None or each in options.ledgers]


async def _of_snapshot(
    location: LedgerLocation, options: ReadOptions, snapshot: Snapshot
) -> tuple[Snapshot, Mapping[int, LedgerMetadata], list[EntryGap]]:
    if snapshot.cluster_id and location.cluster_id and snapshot.cluster_id != location.cluster_id:
        raise InvalidConfig(
            f"the snapshot is of cluster {snapshot.cluster_id}, and this is cluster {location.cluster_id}"
        )
    found = await read_metadata(location, [each.ledger_id for each in snapshot.ranges])
    known = {ledger_id: metadata for ledger_id, metadata in found.items() if metadata is not None}
    for metadata in known.values():
        check_password(metadata, options.location.password)
    for each in snapshot.ranges:
        of_ledger = found[each.ledger_id]
        if of_ledger is not None and of_ledger.closed and each.last > of_ledger.last_entry_id:
            raise EntryAbsent(
                f"ledger {each.ledger_id} ends at entry {of_ledger.last_entry_id}, and the snapshot names entry "
                f"{each.last}: is the snapshot of another cluster?"
            )
    gaps = [location.missing(*each) for each in snapshot.ranges if each.ledger_id not in known]
    if gaps and options.fail_on_data_loss:
        raise gaps[0].error()
    kept = [ledger_id for ledger_id, metadata in known.items() if is_wanted(metadata, options)]
    return snapshot.only(kept), known, gaps


def is_wanted(metadata: LedgerMetadata, options: ReadOptions) -> bool:
    """Whether a ledger matches the options ``tier`` and ``openLedgers``, and is not staged."""
    if is_staged(metadata):
        return False
    if options.tier == "archive":
        return metadata.archived is not None
    if options.tier == "bookies":
        return not metadata.copies_released and (metadata.closed or options.open_ledgers)
    return metadata.closed or options.open_ledgers


def check_password(metadata: LedgerMetadata, password: bytes) -> None:
    """Check the password of a ledger.

    Raises:
        Unauthorized: it is wrong or missing.
    """
    if metadata.key_verifier and not key_matches(ledger_key(password, metadata.key_salt), metadata.key_verifier):
        raise Unauthorized(f"ledger {metadata.ledger_id}: option password is wrong or missing")


async def cut(
    location: LedgerLocation, options: ReadOptions, snapshot: Snapshot, known: Mapping[int, LedgerMetadata]
) -> list[EntryPartition]:
    """The partitions of a snapshot.

    Raises:
        ArchiveUnavailable, ArchiveDenied: the index of a large object cannot be read.
    """
    from_bookies = options.tier == "bookies"
    planned_ranges = [
        planned_range_of(each, known[each.ledger_id], bookies_only=from_bookies) for each in snapshot.ranges
    ]
    cuts = await row_groups(location, [each for each in planned_ranges if each.payload_bytes > options.partition_bytes])
    return partitions_of(
        planned_ranges,
        lambda planned_range: cuts.get(planned_range.ledger_id, ()),
        max_bytes=options.partition_bytes,
        min_partitions=options.min_partitions,
        written=snapshot.written,
        cluster_id=location.cluster_id,
    )


async def row_groups(location: LedgerLocation, planned_ranges: Iterable[PlannedRange]) -> dict[int, Sequence[int]]:
    """The first entries of the row groups of large ledgers, by ledger."""
    found: dict[int, Sequence[int]] = {}
    for planned_range in planned_ranges:
        if planned_range.receipt is None:
            continue
        try:
            directory = await location.directory(planned_range.receipt)
        except (ObjectMissing, ObjectDamaged, ArchiveKeyMissing):
            continue  # reported by the task that reads it
        found[planned_range.ledger_id] = _firsts(directory, planned_range.ledger_id)
    return found


def _firsts(directory: IndexRoot, ledger_id: int) -> list[int]:
    return [run.first_entry_id for held in directory.ledgers if held.ledger_id == ledger_id for run in held.runs]
