"""Archive checks after healing: every closed ledger gets archived and nothing is left behind (I17, L6).

The offloaders of the run are killed and as many new ones take over, competing for leadership in the same way. A client
that is still frozen may be an old offloader; it wakes up when others have done all of its work.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Final, NamedTuple

from crc32c import crc32c

from tallybook.archive.catalog import BucketCatalog, read_catalog
from tallybook.archive.format.schema import object_id_of
from tallybook.archive.manifest import read_manifest
from tallybook.archive.reader import ArchiveReader
from tallybook.client.background import client_tasks
from tallybook.core.buffers import Buffer
from tallybook.core.errors import ArchiveDenied, TallybookError
from tallybook.metadata.ledger.archived import Receipt
from tallybook.metadata.ledger.model import LedgerMetadata
from tallybook.offload.verify import verify_objects
from tallybook.runtime.tasks import InlineWorkers

from ..cluster.bucket import FOREIGN_KEY
from ..oracle.oracle import AckedBatch
from ..supervised_tasks import vital

if TYPE_CHECKING:
    from ..run import Universe

SETTLING_SECONDS: Final = 90.0
POLL_SECONDS: Final = 0.5
AWAKE_SECONDS: Final = 5.0
"""How long an offloader that was frozen may go on working after it wakes up."""
READ_BYTES: Final = 4096


class PendingWork(NamedTuple):
    """Something that offloaders still have to do, with the invariant that is violated if they never do it."""

    invariant: str
    detail: str


async def finish_archiving(universe: Universe) -> None:
    """Run new offloaders until nothing is left to archive, release or remove."""
    offloading, workload = universe.offloading, universe.workload
    if offloading is None:
        return
    if any(slot in workload.processes for slot in workload.running("offloader")):
        await universe.world.clock.sleep(AWAKE_SECONDS)
    workload.kill_actors("offloader")
    offloading.rivals = False  # rivals make slow progress: each gives up attempts of the other that look dead
    async with AsyncExitStack() as stack:
        for number in range(offloading.offloaders):
            client = await stack.enter_async_context(workload.extra_client(f"archivar-{number}"))
            working = client.process.spawn(offloading.work(client))
            vital(universe.oracle, working, "client")
            stack.push_async_callback(universe.stop, working)
        deadline = universe.world.clock.monotonic() + SETTLING_SECONDS
        while (left := _unsettled(universe) or await _manifest_behind(universe)) is not None:
            if universe.world.clock.monotonic() > deadline:
                universe.oracle.violated(*left)
                return
            await universe.world.clock.sleep(POLL_SECONDS)
    universe.oracle.mark("archive: settled")


def _unsettled(universe: Universe) -> PendingWork | None:
    """The first thing that offloaders still have to do, if any."""
    bucket, used = universe.env.bucket, set()
    for ledger_id, known in universe.oracle.ledgers.items():
        metadata = known.metadata
        if not metadata.closed:
            continue
        if metadata.archived is None:
            return PendingWork("L6", f"closed ledger {ledger_id} is not archived")
        if metadata.archiving is not None:
            return PendingWork("L6", f"ledger {ledger_id} is announced for another object, and does not get there")
        if _is_to_be_released(universe, metadata) and not metadata.copies_released:
            return PendingWork("L6", f"archived ledger {ledger_id} is not released")
        used.add(metadata.archived.key)
    objects = [found.key for found in bucket.objects()] if bucket is not None else []
    for key in objects:
        if object_id_of(key) is not None and key not in used:
            return PendingWork("I17", f"orphan object {key} is not removed")
    if FOREIGN_KEY not in objects:
        return PendingWork("I17", f"object {FOREIGN_KEY}, which is not of this cluster, was removed")
    for upload in bucket.uploads() if bucket is not None else []:
        return PendingWork("I17", f"the orphan upload of {upload.key} is not removed")
    return None


async def _manifest_behind(universe: Universe) -> PendingWork | None:
    """Pending work if the manifest of the bucket still counts deleted ledgers."""
    bucket = universe.env.bucket
    manifest = None if bucket is None else await read_manifest(bucket.store, InlineWorkers())
    gone = set() if manifest is None else manifest.ledgers.keys() - universe.oracle.ledgers.keys()
    return PendingWork("I17", f"the manifest counts deleted ledgers: {sorted(gone)}") if gone else None


def _is_to_be_released(universe: Universe, metadata: LedgerMetadata) -> bool:
    """Whether the copies are to be released; not yet if the clock of the offloader that archived it was ahead."""
    archive, receipt = universe.config.archive, metadata.archived
    if archive is None or receipt is None or not archive.releases:
        return False
    return receipt.archived_at_ms <= universe.world.clock.wall_us() // 1000


async def audit_archive(universe: Universe) -> None:
    """Read every archived ledger from the archive alone and compare it batch by batch with what bookies acked (I17)."""
    bucket, oracle = universe.env.bucket, universe.oracle
    if bucket is None:
        return
    archived = {
        ledger_id: known.metadata for ledger_id, known in oracle.ledgers.items() if known.metadata.archived is not None
    }
    async for verdict in verify_objects(bucket.store, InlineWorkers(), archived.values()):
        oracle.expect(verdict.good, "I17", f"{verdict.key}: {verdict.problem}")
    try:
        catalog = await read_catalog(bucket.store, InlineWorkers())
    except ArchiveDenied:
        catalog = BucketCatalog({}, {}, {})  # nothing was archived, or everything is lost
    for ledger_id, metadata in archived.items():
        found, receipt = catalog.ledgers.get(ledger_id), metadata.archived
        # The object may differ: an attempt that lost against another one leaves its copy in an object with other
        # ledgers.
        same = found is not None and receipt is not None and _content(found.receipt) == _content(receipt)
        oracle.expect(same, "I17", f"a catalog read from the bucket alone does not list ledger {ledger_id}")
    gone = sorted(catalog.ledgers.keys() - oracle.ledgers.keys())
    oracle.expect(catalog.manifest is None or not gone, "I17", f"the bucket alone brings deleted ledgers back: {gone}")
    tasks = client_tasks("auditor of the archive")
    reader = ArchiveReader(bucket.store, InlineWorkers(), tasks)
    for metadata in archived.values():
        try:
            await _compare(universe, reader, metadata)
        except TallybookError as error:
            oracle.violated("I17", f"archived ledger {metadata.ledger_id} cannot be read: {error!r}")
    await tasks.close()


def _content(receipt: Receipt) -> tuple[int, int, int]:
    return receipt.entries, receipt.payload_bytes, receipt.rolling_crc


async def _compare(universe: Universe, reader: ArchiveReader, metadata: LedgerMetadata) -> None:
    oracle, receipt, entry_id = universe.oracle, metadata.archived, 0
    known = oracle.ledgers[metadata.ledger_id]
    while receipt is not None and entry_id <= metadata.last_entry_id:
        last = metadata.last_entry_id
        for header, batch in await reader.batches(receipt, metadata.ledger_id, entry_id, last, READ_BYTES):
            same = _is_acked(known.batches.get(header.first_entry_id), header.entry_count, batch)
            oracle.expect(same, "I17", f"ledger {metadata.ledger_id}: the archive has another batch from {entry_id}")
            entry_id = header.last_entry_id + 1


def _is_acked(acked: AckedBatch | None, count: int, batch: Buffer) -> bool:
    return acked is not None and (acked.count, acked.crc) == (count, crc32c(bytes(batch)))
