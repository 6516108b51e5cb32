"""``tallybook offload``: run, status, verify, rekey, relocate, rebuild-catalog."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from tallybook.client.client import Client
from tallybook.core.calendar import utc_datetime
from tallybook.core.errors import (
    ArchiveKeyMissing,
    DamagedFile,
    InvalidConfig,
    NewerFormat,
    NoSuchLedger,
    ObjectDamaged,
)
from tallybook.core.settings import OffloadSettings
from tallybook.metadata.ledger.model import LedgerMetadata
from tallybook.runtime.clock import RealClock
from tallybook.runtime.rng import SystemRng
from tallybook.runtime.tuning import settle_memory

from ..cluster_client import archive_keys, cluster
from ..exits import Exit, reading_only, refuse_later_formats
from ..options import Json, Metadata
from ..output import ResultFields, complain, note, print_json, print_record, print_rows
from ..progress import Progress, show_progress
from ..running import run
from ..server_options import ConfigFile, LogFormatOption, LogLevel, PrintConfig, set_up_log, settings_of

if TYPE_CHECKING:
    from tallybook.archive.objects.retries import StoreWithRetries
    from tallybook.archive.stream_records import RecordsCopy
    from tallybook.offload.open_archive import Archive
    from tallybook.offload.relocate import Relocation

app = typer.Typer(help="Move closed ledgers to an object store, and manage them there.")

_VERIFY_COLUMNS: Final = ("object", "ledgers", "bytes", "verdict")
_CATALOG_COLUMNS: Final = ("ledger_id", "entries", "bytes", "object", "archived_at")

Url = Annotated[
    str | None,
    typer.Option(
        "--archive",
        envvar="TALLYBOOK_ARCHIVE",
        metavar="URL",
        help="Where the objects are: s3://, gs:// or az://BUCKET/PREFIX, or file:///PATH.",
        show_default="from the cluster's metadata",
    ),
]
OffloadSettingOption = Annotated[
    list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="A setting, for example min_age_s=3600.")
]


@app.command("run")
def run_(
    metadata: Metadata,
    archive: Url = None,
    config: ConfigFile = None,
    assignments: OffloadSettingOption = None,
    once: Annotated[bool, typer.Option("--once", help="Do the work that is due now, and exit.")] = False,
    print_config: PrintConfig = False,
    log_level: Annotated[
        LogLevel | None,
        typer.Option("--log-level", help="Lowest level that is logged.", show_default="warning with --once, else info"),
    ] = None,
    log_format: LogFormatOption = None,
    as_json: Json = False,
) -> None:
    """Archive closed ledgers according to the policy, until Ctrl-C or SIGTERM.

    The first run records the location of the archive. Any number of these processes may run; one of them works
    at a time. Credentials come from the usual environment variables of each cloud: AWS_* (also for the region and
    AWS_ENDPOINT_URL), GOOGLE_* and AZURE_*.
    """
    settings = settings_of(OffloadSettings, config, assignments)
    if print_config:
        print_json(settings.model_dump(mode="json"))
        return
    # With --once the totals are printed at the end.
    set_up_log(log_level or (LogLevel.WARNING if once else LogLevel.INFO), log_format, as_json=as_json)
    totals = run(_run(metadata, archive, settings, once))
    print_record(totals, as_json=as_json)


async def _run(metadata: str, url: str | None, settings: OffloadSettings, once: bool) -> ResultFields:
    # Imported here because it takes long to load; below likewise.
    from tallybook.archive.memory_release import release_memory  # noqa: PLC0415
    from tallybook.offload.open_archive import CLIENT_SETTINGS, open_archive  # noqa: PLC0415
    from tallybook.offload.service import OffloadService  # noqa: PLC0415

    reading = CLIENT_SETTINGS.model_copy(update={"security": settings.security, "archive_keys": settings.archive_keys})
    async with (
        cluster(metadata, reading) as client,
        open_archive(client, url, record=True, archive_keys=settings.archive_keys) as archive,
    ):
        offloader = archive.offloader(client, settings)
        service = OffloadService(archive, offloader, settings, release_memory, client)
        if once:
            progress = Progress("archiving", archive.clock, unit="ledgers done")
            async with show_progress(
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
    """Show what is archived, what is waiting, and what the offloader did last."""
    with reading_only():
        print_record(run(_status(metadata, archive)), as_json=as_json)


async def _status(metadata: str, url: str | None) -> ResultFields:
    from tallybook.offload.open_archive import open_archive  # noqa: PLC0415
    from tallybook.offload.service import status_of  # noqa: PLC0415

    async with (
        cluster(metadata) as client,
        open_archive(client, url, archive_keys=archive_keys()) as archive,
    ):
        return await status_of(archive)


@app.command()
def verify(
    metadata: Metadata,
    ledgers: Annotated[
        list[int] | None,
        typer.Argument(metavar="[LEDGER]...", help="Verify only these.", show_default="all archived ones"),
    ] = None,
    archive: Url = None,
    as_json: Json = False,
) -> None:
    """Read whole archive objects, and verify every byte, batch and receipt. Exit code 1 if anything is wrong."""
    with reading_only():
        rows = run(_verify(metadata, archive, ledgers or []))
    print_rows(rows, _VERIFY_COLUMNS, as_json=as_json)
    if any(row["verdict"] != "good" for row in rows):
        raise typer.Exit(Exit.FOUND_WRONG)


async def _verify(metadata: str, url: str | None, wanted: list[int]) -> list[ResultFields]:
    from tallybook.offload.open_archive import open_archive  # noqa: PLC0415
    from tallybook.offload.verify import verify_objects  # noqa: PLC0415

    async with (
        cluster(metadata) as client,
        open_archive(client, url, archive_keys=archive_keys()) as archive,
    ):
        members = [found async for found in _archived(client, wanted)]
        rows: list[ResultFields] = []
        progress = Progress("verifying", archive.clock, unit="objects done")
        async with show_progress(progress, archive.clock, lambda: (len(rows), _bytes_read(archive.store))):
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


def _bytes_read(store: StoreWithRetries) -> int:
    return store.retries.stats.get("bytes_read", 0)


async def _current(client: Client, ledger_id: int) -> LedgerMetadata | None:
    try:
        return await client.ledger_metadata(ledger_id)
    except NoSuchLedger:
        return None


async def _archived(client: Client, wanted: list[int]) -> Any:
    """The ledgers to be verified: the wanted ones, or all that are archived."""
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
        bool, typer.Option("--seal-plain", help="Also encrypt plain objects: each is copied and verified.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be done, and change nothing.")] = False,
    as_json: Json = False,
) -> None:
    """Rewrap the data key of every encrypted object with the current archive key. Exit code 1 if any failed.

    Objects are not rewritten, only the wrapped key of each, 112 bytes. The command may be stopped and run again at any
    time, while all other processes go on. Once 'keys_before' names no other key, the old keys may be dropped
    ('security archive-key --drop'); all running clients and offloaders must have the current key by then.
    """
    totals, problems = run(_rekey(metadata, archive, change=not dry_run, seal_plain=seal_plain))
    shown = totals if as_json else {**totals, "keys_before": ", ".join(totals["keys_before"]) or "none"}
    print_record(shown, as_json=as_json)
    for problem in problems:
        complain(problem)
    if problems:
        raise typer.Exit(Exit.FOUND_WRONG)


async def _rekey(metadata: str, url: str | None, *, change: bool, seal_plain: bool) -> tuple[dict[str, Any], list[str]]:
    from tallybook.archive.copy_key import ensure_copy_key, find_copy_key  # noqa: PLC0415
    from tallybook.metadata.records.update import RecordUpdater  # noqa: PLC0415
    from tallybook.offload.open_archive import open_archive  # noqa: PLC0415
    from tallybook.offload.rekey import CURRENT, FAILED, PLAIN, REWRAPPED, SEALED  # noqa: PLC0415
    from tallybook.offload.rekey import rekey as rekeyed  # noqa: PLC0415

    counts = dict.fromkeys((CURRENT, REWRAPPED, SEALED, PLAIN, FAILED), 0)
    before, problems = set[str](), list[str]()
    async with (
        cluster(metadata) as client,
        open_archive(client, url, record=change, archive_keys=archive_keys()) as archive,
    ):
        store = archive.encrypted_store
        if store is None:
            raise InvalidConfig("this archive has no keys, so there is nothing to rewrap")
        current, source = await store.current_key(), store.keys
        copy_key = b""
        try:
            if change:
                updater = RecordUpdater(archive.metadata, archive.clock, archive.rng.fork("copy-key"))
                copies = await ensure_copy_key(updater, source, make=seal_plain)
            else:
                copies = await find_copy_key(archive.metadata, source)
        except (ArchiveKeyMissing, DamagedFile) as error:
            if seal_plain:
                raise
            # Objects can be rewrapped without the copy key.
            problems.append(error.message)
        else:
            if copies is not None:
                before |= {copies.before} - {""}
                copy_key = copies.key
        progress = Progress("giving keys", archive.clock, unit="objects done")
        async with show_progress(progress, archive.clock, lambda: (sum(counts.values()), _bytes_read(archive.store))):
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
        bool, typer.Option("--accept-missing", help="Relocate even if objects of ledgers are missing there.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Record the new location of the archive, after its objects were moved or copied.

    Stop offloaders first. Every object of a ledger has to be at the new location, with its size; otherwise the missing
    ones are listed, nothing is changed, and the exit code is 1. Restart processes that have read from the archive: they
    read its location only once.
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
        typer.Option(
            "--metadata", metavar="URI", help="Store to restore the ledgers to; without it they are only listed."
        ),
    ] = None,
    take_over: Annotated[
        bool,
        typer.Option("--take-over", help="Take over a bucket that is the archive of another cluster."),
    ] = False,
    accept_lost_streams: Annotated[
        bool,
        typer.Option(
            "--accept-lost-streams",
            help="Continue even if the bucket's copy of the stream records is damaged; then no stream is restored.",
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """List the ledgers in a bucket from its objects alone, or restore them to a metadata store.

    Without --metadata nothing is written. With it, every object is first read whole and verified; ledgers that the
    store knows stay as they are. Streams and subscriptions are restored, too; segments that were not archived are
    listed. In the end the bucket belongs to this cluster. This needs --take-over if the bucket is the archive of
    another cluster, and --accept-lost-streams if the copy of the stream records is damaged. Exit code 1 if segments are
    missing, or if an object, or the store's record of one of its ledgers, is damaged; 6 if nothing is, but a newer
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


async def _list_catalog(url: str) -> tuple[list[ResultFields], dict[str, str]]:
    from tallybook.archive.library import ArchiveLibrary  # noqa: PLC0415
    from tallybook.archive.objects.open import open_store  # noqa: PLC0415

    clock = RealClock()
    async with AsyncExitStack() as stack:
        store = await open_store(url, clock, SystemRng(), archive_keys=archive_keys())
        stack.push_async_callback(store.close)
        progress = Progress("reading the bucket", clock, unit="requests")
        async with show_progress(progress, clock, lambda: (store.retries.stats.get("read_ok", 0), _bytes_read(store))):
            library = await stack.enter_async_context(ArchiveLibrary(store))
        rows: list[ResultFields] = [
            {
                "ledger_id": ledger_id,
                "entries": found.receipt.entries,
                "bytes": found.receipt.payload_bytes,
                "object": found.receipt.key,
                "archived_at": utc_datetime(found.receipt.archived_at_ms).isoformat(timespec="seconds"),
            }
            for ledger_id, found in library.ledgers.items()
        ]
        return rows, dict(library.damaged)


async def _rebuild(
    url: str, metadata: str, *, take_over: bool, accept_lost_streams: bool
) -> tuple[ResultFields, dict[str, str], list[str]]:
    from tallybook.archive.objects.probe import OBJECT_ERRORS, concerns_one_object  # noqa: PLC0415
    from tallybook.archive.stream_records import RECORDS_KEY, RecordsCopy, read_records  # noqa: PLC0415
    from tallybook.offload.open_archive import open_archive  # noqa: PLC0415
    from tallybook.offload.rebuild import check_owner, claim_bucket, rebuild_catalog  # noqa: PLC0415

    entered, known, damaged, unreadable = 0, 0, dict[str, str](), dict[str, str]()
    later: list[str] = []
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(cluster(metadata))
        # Checked before the metadata name the bucket as the archive of this cluster.
        async with open_archive(client, url, filled=True, archive_keys=archive_keys()) as archive:
            await check_owner(archive.store, archive.metadata, archive.workers, take_over=take_over)
        archive = await stack.enter_async_context(
            open_archive(client, url, record=True, filled=True, archive_keys=archive_keys())
        )
        progress = Progress("reading the bucket", archive.clock, unit="ledgers done")
        async with show_progress(progress, archive.clock, lambda: (entered + known, _bytes_read(archive.store))):
            async for found in rebuild_catalog(archive.store, archive.metadata, archive.workers):
                entered, known = entered + len(found.ledger_ids), known + len(found.known)
                unreadable |= {f"ledger {ledger_id}": why for ledger_id, why in found.unreadable.items()}
                unreadable |= dict.fromkeys(
                    (f"ledger {ledger_id} of {found.key}" for ledger_id in found.others),
                    "another ledger has its id now, so it is not restored",
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
                damaged[RECORDS_KEY] = f"{error.message}: no stream is restored"
            if isinstance(error, DamagedFile | ObjectDamaged) and not accept_lost_streams:
                # Once this cluster owns the bucket, its offloader would overwrite the damaged copy.
                claims = False
                damaged[RECORDS_KEY] += (
                    ", and the bucket is not taken over: restore an older version of the object, or run this again "
                    "with --accept-lost-streams"
                )
        # After the ledgers: a segment is kept if its ledger was restored.
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


async def _streams_back(archive: Archive, copy: RecordsCopy) -> tuple[ResultFields, dict[str, str], dict[str, str]]:
    """Restore the stream records; returns counts, the records with problems, and what is lost."""
    from tallybook.offload.rebuild import is_own  # noqa: PLC0415
    from tallybook.stream.restore.restore import restore_streams  # noqa: PLC0415

    restored, listed, deleted = 0, 0, 0
    problems, lost = dict[str, str](), dict[str, str]()
    own = await is_own(archive.store, archive.metadata, archive.workers)
    async for record in restore_streams(archive.metadata, copy, own=own):
        restored += not (record.known or record.deleted or record.problem)
        listed += record.listed
        lost |= dict.fromkeys(record.lost, "it is not restored")
        if record.problem:
            problems[record.name] = record.problem
        if record.deleted:
            deleted += 1
            complain(f"{record.name}: it is not restored, because it was deleted, or nothing that it names is left")
    counts: ResultFields = {
        "stream_records_restored": restored,
        "stream_records_deleted": deleted,
        "segments_listed_again": listed,
        "lost_of_streams": len(lost),
    }
    return counts, problems, lost
