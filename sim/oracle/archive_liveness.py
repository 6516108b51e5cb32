"""After healing, where there is an archive: every closed ledger gets into it, and nothing is left behind (I17, L6).

What offloaders were doing ends with them. Others take their place, as many as there were, and compete for the lead as
those did; a client that sleeps on may be one of them, and wakes up when all that it was doing has been done by others.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Final, NamedTuple

from crc32c import crc32c

from tallybook.archive.catalog import Catalog, read_catalog
from tallybook.archive.manifest import read_manifest
from tallybook.archive.reader import ArchiveReader
from tallybook.archive.schema import object_id_of
from tallybook.client.background import client_tasks
from tallybook.core.batch import Buffer
from tallybook.core.errors import ArchiveDenied, TallybookError
from tallybook.metadata.archived import Receipt
from tallybook.metadata.model import LedgerMetadata
from tallybook.offload.verify import verify_objects
from tallybook.runtime.tasks import InlineWorkers

from .bucket import FOREIGN_KEY
from .god import AckedBatch
from .vital import vital

if TYPE_CHECKING:
    from .run import Universe

SETTLING_SECONDS: Final = 90.0
LOOK_SECONDS: Final = 0.5
AWAKE_SECONDS: Final = 5.0
"""How long an offloader that has slept may do what it finds right when it wakes."""
READ_BYTES: Final = 4096


class Unsettled(NamedTuple):
    """Something that offloaders have yet to do."""

    invariant: str
    detail: str


async def settle(universe: Universe) -> None:
    """Let offloaders do all there is to do."""
    offloading, workload = universe.offloading, universe.workload
    if offloading is None:
        return
    if any(slot in workload.processes for slot in workload.running("offloader")):
        await universe.world.clock.sleep(AWAKE_SECONDS)
    workload.dismiss("offloader")
    offloading.rivals = False  # rivals get on, but slowly: each undoes what it takes for dead
    async with AsyncExitStack() as stack:
        for number in range(offloading.offloaders):
            client = await stack.enter_async_context(workload.guest(f"archivar-{number}"))
            working = client.process.spawn(offloading.work(client))
            vital(universe.god, working, "client")
            stack.push_async_callback(universe.stop, working)
        deadline = universe.world.clock.monotonic() + SETTLING_SECONDS
        while (left := _unsettled(universe) or await _manifest_behind(universe)) is not None:
            if universe.world.clock.monotonic() > deadline:
                universe.god.violated(*left)
                return
            await universe.world.clock.sleep(LOOK_SECONDS)
    universe.god.mark("archive: settled")


def _unsettled(universe: Universe) -> Unsettled | None:
    """The first thing that is yet to be done, if there is any."""
    bucket, used = universe.around.bucket, set()
    for ledger_id, known in universe.god.ledgers.items():
        metadata = known.metadata
        if not metadata.closed:
            continue
        if metadata.archived is None:
            return Unsettled("L6", f"closed ledger {ledger_id} does not get into the archive")
        if metadata.archiving is not None:
            return Unsettled("L6", f"ledger {ledger_id} is said to be on its way to another object, and is not")
        if _is_to_be_released(universe, metadata) and not metadata.copies_released:
            return Unsettled("L6", f"archived ledger {ledger_id} is not released")
        used.add(metadata.archived.key)
    objects = [found.key for found in bucket.objects()] if bucket is not None else []
    for key in objects:
        if object_id_of(key) is not None and key not in used:
            return Unsettled("I17", f"object {key} belongs to nobody, and is not removed")
    if FOREIGN_KEY not in objects:
        return Unsettled("I17", "somebody else's object was removed")
    for upload in bucket.uploads() if bucket is not None else []:
        return Unsettled("I17", f"the unfinished upload of {upload.key} belongs to nobody, and is not removed")
    return None


async def _manifest_behind(universe: Universe) -> Unsettled | None:
    """The ledgers that the manifest of the bucket counts although they were deleted, if there are any."""
    bucket = universe.around.bucket
    manifest = None if bucket is None else await read_manifest(bucket.store, InlineWorkers())
    gone = set() if manifest is None else manifest.ledgers.keys() - universe.god.ledgers.keys()
    return Unsettled("I17", f"the manifest counts deleted ledgers: {sorted(gone)}") if gone else None


def _is_to_be_released(universe: Universe, metadata: LedgerMetadata) -> bool:
    """Unless whoever archived it had a clock that was ahead: then it is kept for longer."""
    archive, receipt = universe.swarm.archive, metadata.archived
    if archive is None or receipt is None or not archive.releases:
        return False
    return receipt.archived_at_ms <= universe.world.clock.wall_us() // 1000


async def audit_archive(universe: Universe) -> None:
    """Every archived ledger is read from the archive alone, and is batch for batch what bookies acked (I17)."""
    bucket, god = universe.around.bucket, universe.god
    if bucket is None:
        return
    archived = {
        ledger_id: known.metadata for ledger_id, known in god.ledgers.items() if known.metadata.archived is not None
    }
    async for verdict in verify_objects(bucket.store, InlineWorkers(), archived.values()):
        god.expect(verdict.good, "I17", f"{verdict.key}: {verdict.problem}")
    try:
        catalog = await read_catalog(bucket.store, InlineWorkers())
    except ArchiveDenied:
        catalog = Catalog({}, {}, {})  # nothing was archived, or all of it is lost
    for ledger_id, metadata in archived.items():
        found, receipt = catalog.ledgers.get(ledger_id), metadata.archived
        # In this object or in another one: an attempt that another was ahead of leaves its copy among those of others.
        same = found is not None and receipt is not None and _content(found.receipt) == _content(receipt)
        god.expect(same, "I17", f"the bucket alone does not tell that ledger {ledger_id} is in it")
    gone = sorted(catalog.ledgers.keys() - god.ledgers.keys())
    god.expect(catalog.manifest is None or not gone, "I17", f"the bucket alone brings deleted ledgers back: {gone}")
    tasks = client_tasks("auditor of the archive")
    reader = ArchiveReader(bucket.store, InlineWorkers(), tasks)
    for metadata in archived.values():
        try:
            await _compare(universe, reader, metadata)
        except TallybookError as error:
            god.violated("I17", f"archived ledger {metadata.ledger_id} cannot be read: {error!r}")
    await tasks.close()


def _content(receipt: Receipt) -> tuple[int, int, int]:
    return receipt.entries, receipt.payload_bytes, receipt.rolling_crc


async def _compare(universe: Universe, reader: ArchiveReader, metadata: LedgerMetadata) -> None:
    god, receipt, entry_id = universe.god, metadata.archived, 0
    known = god.ledgers[metadata.ledger_id]
    while receipt is not None and entry_id <= metadata.last_entry_id:
        last = metadata.last_entry_id
        for header, batch in await reader.batches(receipt, metadata.ledger_id, entry_id, last, READ_BYTES):
            same = _is_acked(known.batches.get(header.first_entry_id), header.entry_count, batch)
            god.expect(same, "I17", f"ledger {metadata.ledger_id}: the archive has another batch from {entry_id}")
            entry_id = header.last_entry_id + 1


def _is_acked(acked: AckedBatch | None, count: int, batch: Buffer) -> bool:
    return acked is not None and (acked.count, acked.crc) == (count, crc32c(bytes(batch)))
