"""``tallybook offload``: move closed ledgers to an object store, show how far that is, check and rebuild."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from tallybook.client.client import Client
from tallybook.core.config import OffloadSettings
from tallybook.core.errors import (
    ArchiveKeyMissing,
    DamagedFile,
    InvalidConfig,
    NewerFormat,
    NoSuchLedger,
    ObjectDamaged,
)
from tallybook.core.moments import moment_of
from tallybook.metadata.model import LedgerMetadata
from tallybook.runtime.clock import RealClock
from tallybook.runtime.rng import SystemRng
from tallybook.runtime.tuning import settle_memory

from .cluster import archive_keys, cluster
from .exits import Exit, reading_only, refuse_later_formats
from .options import Json, Metadata
from .output import Record, complain, note, print_json, print_record, print_rows
from .progress import Progress, watched
from .running import run
from .server_options import ConfigFile, Format, LogLevel, PrintConfig, set_up_log, settings_of

if TYPE_CHECKING:
    from tallybook.archive.objects.patient import AskedStore
    from tallybook.archive.records import RecordsCopy
    from tallybook.offload.process import Archive
    from tallybook.offload.relocate import Relocation

app = typer.Typer(help="Move closed ledgers to an object store, and look after them there.")

_VERIFY_COLUMNS: Final = ("object", "ledgers", "bytes", "verdict")
_CATALOG_COLUMNS: Final = ("ledger_id", "entries", "bytes", "object", "archived_at")

Url = Annotated[
    str | None,
    typer.Option(
        "--archive",
        envvar="TALLYBOOK_ARCHIVE",
        metavar="URL",
        help="Where the objects are: s3://, gs:// or az://BUCKET/PREFIX, or file:///PATH.",
        show_default="what the cluster's metadata say",
    ),
]
Set = Annotated[
    list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="A setting, for example min_age_s=3600.")
]


@app.command("run")
def run_(
    metadata: Metadata,
    archive: Url = None,
    config: ConfigFile = None,
    assignments: Set = None,
    once: Annotated[bool, typer.Option("--once", help="Do what there is to do now, and end.")] = False,
    print_config: PrintConfig = False,
    log_level: Annotated[
        LogLevel | None,
        typer.Option("--log-level", help="What is logged.", show_default="warning with --once, else info"),
    ] = None,
    log_format: Format = None,
    as_json: Json = False,
) -> None:
    """Archive closed ledgers as the policy says, until Ctrl-C.

    The first run settles where the archive of the cluster is. Any number may run; one of them works at a time. Keys
    come from the variables that every tool of these clouds knows: AWS_*, like the region and AWS_ENDPOINT_URL,
    GOOGLE_*, and AZURE_*.
    """
    settings = settings_of(OffloadSettings, config, assignments)
    if print_config:
        print_json(settings.model_dump(mode="json"))
        return
    # What ends by itself says in the end what it did.
    set_up_log(log_level or (LogLevel.WARNING if once else LogLevel.INFO), log_format, as_json=as_json)
    totals = run(_run(metadata, archive, settings, once))
    print_record(totals, as_json=as_json)


async def _run(metadata: str, url: str | None, settings: OffloadSettings, once: bool) -> Record:
    # What reads and writes Parquet takes long to load.
    from tallybook.archive.memory import give_back_memory  # noqa: PLC0415
    from tallybook.offload.process import SCANNING, opened  # noqa: PLC0415
    from tallybook.offload.service import OffloadService  # noqa: PLC0415

    reading = SCANNING.model_copy(update={"security": settings.security, "archive_keys": settings.archive_keys})
    async with (
        cluster(metadata, reading) as client,
        opened(client, url, settle=True, archive_keys=settings.archive_keys) as archive,
    ):
        offloader = archive.offloader(client, settings)
        service = OffloadService(archive, offloader, settings, give_back_memory, client)
        if once:
            progress = Progress("archiving", archive.clock, unit="ledgers done")
            async with watched(
                progress,
                archive.clock,
                lambda: (
                    offloader.totals.ledgers_archived + offloader.totals.ledgers_moved,
                    offloader.streamed_bytes,
                ),
            ):
                return await service.work_off()
        settle_memory()
        try:
            await service.run()
        except asyncio.CancelledError:
            note("stopped")
        return service.totals()


@app.command()
def status(metadata: Metadata, archive: Url = None, as_json: Json = False) -> None:
    """What is archived, what waits, and what the offloader did last."""
    with reading_only():
        print_record(run(_status(metadata, archive)), as_json=as_json)


async def _status(metadata: str, url: str | None) -> Record:
    from tallybook.offload.process import opened  # noqa: PLC0415
    from tallybook.offload.service import status_of  # noqa: PLC0415

    async with (
        cluster(metadata) as client,
        opened(client, url, archive_keys=archive_keys()) as archive,
    ):
        return await status_of(archive)


@app.command()
def verify(
    metadata: Metadata,
    ledgers: Annotated[
        list[int] | None, typer.Argument(metavar="[LEDGER]...", help="Only these.", show_default="all archived ones")
    ] = None,
    archive: Url = None,
    as_json: Json = False,
) -> None:
    """Read archive objects whole, and compare every byte, batch and receipt. Exit code 1 if anything is wrong."""
    with reading_only():
        rows = run(_verify(metadata, archive, ledgers or []))
    print_rows(rows, _VERIFY_COLUMNS, as_json=as_json)
    if any(row["verdict"] != "good" for row in rows):
        raise typer.Exit(Exit.FOUND_WRONG)


async def _verify(metadata: str, url: str | None, wanted: list[int]) -> list[Record]:
    from tallybook.offload.process import opened  # noqa: PLC0415
    from tallybook.offload.verify import verify_objects  # noqa: PLC0415

    async with (
        cluster(metadata) as client,
        opened(client, url, archive_keys=archive_keys()) as archive,
    ):
        members = [found async for found in _archived(client, wanted)]
        rows: list[Record] = []
        progress = Progress("verifying", archive.clock, unit="objects done")
        async with watched(progress, archive.clock, lambda: (len(rows), _bytes_read(archive.store))):
            async for verdict in verify_objects(archive.store, archive.workers, members, partial(_current, client)):
                rows.append(  # noqa: PERF401 - how many there are is watched
                    {
                        "object": verdict.key,
                        "ledgers": len(verdict.ledger_ids),
                        "bytes": verdict.object_bytes,
                        "verdict": verdict.problem or "good",
                    }
                )
        return rows


def _bytes_read(store: AskedStore) -> int:
    return store.patience.stats.get("bytes_read", 0)


async def _current(client: Client, ledger_id: int) -> LedgerMetadata | None:
    try:
        return await client.ledger_metadata(ledger_id)
    except NoSuchLedger:
        return None


async def _archived(client: Client, wanted: list[int]) -> Any:
    """The ledgers to be verified; of all, those that are archived and still there."""
    for ledger_id in wanted:
        metadata = await client.ledger_metadata(ledger_id)
        if metadata.archived is None:
            raise NoSuchLedger(f"ledger {ledger_id} is not archived")
        yield metadata
    if wanted:
        return
    async for ledger_id in client.list_ledgers():
        found = await _current(client, ledger_id)
        if found is not None and found.archived is not None:
            yield found


@app.command()
def rekey(
    metadata: Metadata,
    archive: Url = None,
    seal_plain: Annotated[
        bool, typer.Option("--seal-plain", help="Seal objects that are plain, too: each is copied, and checked.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be done, and change nothing.")] = False,
    as_json: Json = False,
) -> None:
    """Give all sealed objects the current key of the archive. Exit code 1 if something could not be given it.

    Objects are not written anew, only the key of each, 112 bytes. It may be stopped and run again at any time, while
    everything else goes on. Once it names no other key in 'keys_before', the others may be dropped
    ('security archive-key --drop'); those of clients and offloaders that run must have the current key by then.
    """
    totals, problems = run(_rekey(metadata, archive, change=not dry_run, seal_plain=seal_plain))
    shown = totals if as_json else {**totals, "keys_before": ", ".join(totals["keys_before"]) or "none"}
    print_record(shown, as_json=as_json)
    for problem in problems:
        complain(problem)
    if problems:
        raise typer.Exit(Exit.FOUND_WRONG)


async def _rekey(metadata: str, url: str | None, *, change: bool, seal_plain: bool) -> tuple[dict[str, Any], list[str]]:
    from tallybook.archive.copy_key import find_copy_key, settle_copy_key  # noqa: PLC0415
    from tallybook.offload.process import opened  # noqa: PLC0415
    from tallybook.offload.rekey import CURRENT, FAILED, PLAIN, REWRAPPED, SEALED  # noqa: PLC0415
    from tallybook.offload.rekey import rekey as rekeyed  # noqa: PLC0415

    counts = dict.fromkeys((CURRENT, REWRAPPED, SEALED, PLAIN, FAILED), 0)
    before, problems = set[str](), list[str]()
    async with (
        cluster(metadata) as client,
        opened(client, url, settle=change, archive_keys=archive_keys()) as archive,
    ):
        store = archive.sealing
        if store is None:
            raise InvalidConfig("there is nothing to be sealed here")
        current, source = await store.current_key(), store.keys
        copy_key = b""
        try:
            if change:
                copies = await settle_copy_key(archive.metadata, source, make=seal_plain)
            else:
                copies = await find_copy_key(archive.metadata, source)
        except (ArchiveKeyMissing, DamagedFile) as error:
            if seal_plain:
                raise
            # The own keys of objects do not hang on it: they are wrapped anew without it.
            problems.append(error.message)
        else:
            if copies is not None:
                before |= {copies.before} - {""}
                copy_key = copies.key
        progress = Progress("giving keys", archive.clock, unit="objects done")
        async with watched(progress, archive.clock, lambda: (sum(counts.values()), _bytes_read(archive.store))):
            async for done in rekeyed(store, current, change=change, seal_plain=seal_plain, copy_key=copy_key):
                counts[done.outcome] += 1
                before |= {done.before} - {""}
                if done.problem:
                    problems.append(done.problem)
    return {"current_key": current, **counts, "keys_before": sorted(before), "dry_run": not change}, problems


@app.command()
def relocate(
    url: Annotated[
        str,
        typer.Argument(
            metavar="URL", help="Where the objects are now: s3://, gs:// or az://BUCKET/PREFIX, or file:///PATH."
        ),
    ],
    metadata: Metadata,
    accept_missing: Annotated[
        bool, typer.Option("--accept-missing", help="Also where objects of ledgers are missing there.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Record where the archive of the cluster is, after its objects were moved or copied to another place.

    Stop offloaders first. Every object that a ledger is in has to be at the new place, with its size; else they are
    named, nothing is changed, and the exit code is 1. Processes that read look at the record when they start to read
    from the archive: restart those that have.
    """
    found = run(_relocate(metadata, url, accept_missing=accept_missing))
    counts = {"archive": url, "objects": found.objects, "objects_missing": len(found.missing)}
    print_record({**counts, "relocated": found.relocated}, as_json=as_json)
    for key in found.missing:
        complain(f"{key}: it is not at {url}, or has another size")
    if not found.relocated:
        raise typer.Exit(Exit.FOUND_WRONG)


async def _relocate(metadata: str, url: str, *, accept_missing: bool) -> Relocation:
    from tallybook.offload.relocate import relocate_archive  # noqa: PLC0415

    async with cluster(metadata) as client:
        return await relocate_archive(client, url, accept_missing=accept_missing, archive_keys=archive_keys())


@app.command("rebuild-catalog")
def rebuild_catalog_(
    url: Annotated[
        str, typer.Argument(metavar="URL", help="The bucket: s3://, gs:// or az://BUCKET/PREFIX, or file:///PATH.")
    ],
    metadata: Annotated[
        str | None,
        typer.Option("--metadata", metavar="URI", help="Enter the ledgers here; without it they are listed."),
    ] = None,
    take_over: Annotated[
        bool,
        typer.Option("--take-over", help="Make the bucket this cluster's, though it is the archive of another one."),
    ] = False,
    accept_lost_streams: Annotated[
        bool,
        typer.Option(
            "--accept-lost-streams",
            help="Also where its copy of the records of streams is damaged, and no stream comes back.",
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Tell from a bucket alone which ledgers it holds, and bring them back into a metadata store.

    Without --metadata nothing is written anywhere. With it, every object is read whole and checked first; ledgers that
    the store knows are left as they are. Streams and subscriptions come back, too; segments that were not archived are
    named. In the end the bucket is this cluster's; where it is that of another one, --take-over has to say that this
    may be, and where the copy of the streams' records is damaged, --accept-lost-streams. Exit code 1 if there are such,
    if an object is damaged, or the record that the store has of one of its ledgers; 6 if nothing is, and a newer
    Tallybook has written such a record.
    """
    later: list[str] = []
    if metadata is None:
        rows, wrong = run(_list_catalog(url))
        print_rows(rows, _CATALOG_COLUMNS, as_json=as_json)
    else:
        record, wrong, later = run(
            _rebuild(url, metadata, take_over=take_over, accept_lost_streams=accept_lost_streams)
        )
        print_record(record, as_json=as_json)
    for what, problem in wrong.items():
        complain(f"{what}: {problem}")
    if wrong:
        for record_of_later in later:
            complain(record_of_later)
        raise typer.Exit(Exit.FOUND_WRONG)
    refuse_later_formats(later)


async def _list_catalog(url: str) -> tuple[list[Record], dict[str, str]]:
    from tallybook.archive.library import ArchiveLibrary  # noqa: PLC0415
    from tallybook.archive.objects.open import open_store  # noqa: PLC0415

    clock = RealClock()
    async with AsyncExitStack() as stack:
        store = await open_store(url, clock, SystemRng(), archive_keys=archive_keys())
        stack.push_async_callback(store.close)
        progress = Progress("looking into the bucket", clock, unit="requests")
        async with watched(progress, clock, lambda: (store.patience.stats.get("read_ok", 0), _bytes_read(store))):
            library = await stack.enter_async_context(ArchiveLibrary(store))
        rows: list[Record] = [
            {
                "ledger_id": ledger_id,
                "entries": found.receipt.entries,
                "bytes": found.receipt.payload_bytes,
                "object": found.receipt.key,
                "archived_at": moment_of(found.receipt.archived_at_ms).isoformat(timespec="seconds"),
            }
            for ledger_id, found in library.ledgers.items()
        ]
        return rows, dict(library.damaged)


async def _rebuild(
    url: str, metadata: str, *, take_over: bool, accept_lost_streams: bool
) -> tuple[Record, dict[str, str], list[str]]:
    from tallybook.archive.objects.probe import OBJECT_ERRORS, concerns_one_object  # noqa: PLC0415
    from tallybook.archive.records import RECORDS_KEY, RecordsCopy, read_records  # noqa: PLC0415
    from tallybook.offload.process import opened  # noqa: PLC0415
    from tallybook.offload.rebuild import check_owner, claim_bucket, rebuild_catalog  # noqa: PLC0415

    entered, known, damaged, unreadable = 0, 0, dict[str, str](), dict[str, str]()
    later: list[str] = []
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(cluster(metadata))
        # Before the metadata name the bucket as the archive of this cluster.
        async with opened(client, url, filled=True, archive_keys=archive_keys()) as archive:
            await check_owner(archive.store, archive.metadata, archive.workers, take_over=take_over)
        archive = await stack.enter_async_context(
            opened(client, url, settle=True, filled=True, archive_keys=archive_keys())
        )
        progress = Progress("reading the bucket", archive.clock, unit="ledgers done")
        async with watched(progress, archive.clock, lambda: (entered + known, _bytes_read(archive.store))):
            async for found in rebuild_catalog(archive.store, archive.metadata, archive.workers):
                entered, known = entered + len(found.ledger_ids), known + len(found.known)
                unreadable |= {f"ledger {ledger_id}": why for ledger_id, why in found.unreadable.items()}
                unreadable |= dict.fromkeys(
                    (f"ledger {ledger_id} of {found.key}" for ledger_id in found.others),
                    "another ledger has its id by now: it does not come back",
                )
                later += [f"ledger {ledger_id}: {why}" for ledger_id, why in found.newer.items()]
                if found.problem:
                    damaged[found.key] = found.problem
        copy, claims = RecordsCopy(), True
        try:
            copy = await read_records(archive.store, archive.workers)
        except (DamagedFile, *OBJECT_ERRORS) as error:
            if not await concerns_one_object(archive.store, error):
                raise
            if isinstance(error, NewerFormat):
                later.append(error.message)
            else:
                damaged[RECORDS_KEY] = f"{error.message}: no stream comes back"
            if isinstance(error, DamagedFile | ObjectDamaged) and not accept_lost_streams:
                # The offloader of a cluster whose bucket it is replaces it; one that cannot be read now it leaves.
                claims = False
                damaged[RECORDS_KEY] += (
                    ", and the bucket of another cluster stays its: bring an older version of the object back, or run "
                    "this again with --accept-lost-streams"
                )
        # A segment is kept or given up by whether its ledger has come back.
        of_streams, problems, lost = await _streams_back(archive, copy)
        unreadable |= problems
        if claims:
            await claim_bucket(archive.store, archive.metadata, archive.workers)
    counts = {
        "ledgers_entered": entered,
        "ledgers_known": known,
        "objects_damaged": len(damaged),
        "records_unreadable": len(unreadable) + len(later),
        **of_streams,
    }
    return counts, damaged | unreadable | lost, later


async def _streams_back(archive: Archive, copy: RecordsCopy) -> tuple[Record, dict[str, str], dict[str, str]]:
    """What of the records of streams was entered, in numbers; what is wrong with some; and what does not come back."""
    from tallybook.offload.rebuild import is_own  # noqa: PLC0415
    from tallybook.stream.restoring import restore_streams  # noqa: PLC0415

    restored, listed, deleted = 0, 0, 0
    problems, lost = dict[str, str](), dict[str, str]()
    own = await is_own(archive.store, archive.metadata, archive.workers)
    async for record in restore_streams(archive.metadata, copy, own=own):
        restored += not (record.known or record.deleted or record.problem)
        listed += record.listed
        lost |= dict.fromkeys(record.lost, "it does not come back")
        if record.problem:
            problems[record.name] = record.problem
        if record.deleted:
            deleted += 1
            complain(f"{record.name}: it does not come back, as it was deleted, or nothing that it names is left")
    counts: Record = {
        "stream_records_restored": restored,
        "stream_records_deleted": deleted,
        "segments_listed_again": listed,
        "lost_of_streams": len(lost),
    }
    return counts, problems, lost
