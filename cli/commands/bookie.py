"""``tallybook bookie``: run, init, rebuild-index, ls, info, drain, readonly."""

from __future__ import annotations

import asyncio
import shlex
import socket
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tallybook.core.errors import DamagedFile, InvalidArgument, InvalidConfig, NewerFormat, NoSuchBookie, TallybookError
from tallybook.core.settings import BookieSettings, ClientSettings
from tallybook.metadata.store import BookieInfo
from tallybook.runtime.clock import RealClock
from tallybook.runtime.disk.os_disk import RealDisk
from tallybook.runtime.process import RealProcess
from tallybook.runtime.rng import SystemRng

from ..exits import RefusedToStart, disk_failed, reading_only
from ..options import Json, Metadata, check_directory, directory
from ..output import ResultFields, complain, print_json, print_record, print_rows
from ..progress import human_bytes
from ..rights import check_own_permission
from ..running import run, stop_event
from ..server_options import (
    ConfigFile,
    GrpcListen,
    HttpListen,
    InsecureOption,
    Level,
    LogFormatOption,
    LogLevel,
    OptionalMetadata,
    ParentPipe,
    PrintConfig,
    set_up_log,
    settings_of,
)
from .bookie_modes import drain, readonly

if TYPE_CHECKING:
    from tallybook.client.client import Client

app = typer.Typer(help="Run, list and drain bookies.")

_RESOLVE_SECONDS = 10.0
_COLUMNS = ("bookie_id", "mode", "address", "http_address", "rack", "free_bytes", "boot", "version")

Data = Annotated[
    Path | None, typer.Option("--data", parser=directory, metavar="DIR", help="Data directory.", show_default=False)
]
BookieId = Annotated[
    str | None, typer.Option("--id", metavar="ID", help="Id of the bookie.", show_default="from the data directory")
]
SettingOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="Any other setting, for example journal.segment_count=8."),
]


@app.command("run")
def run_(
    data: Data = None,
    metadata: OptionalMetadata = None,
    bookie_id: BookieId = None,
    listen: GrpcListen = None,
    http: HttpListen = None,
    advertise: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="gRPC address that is registered for clients.")
    ] = None,
    rack: Annotated[str | None, typer.Option(help="Failure domain.")] = None,
    insecure: InsecureOption = False,
    config: ConfigFile = None,
    assignments: SettingOption = None,
    print_config: PrintConfig = False,
    log_level: Level = LogLevel.INFO,
    log_format: LogFormatOption = None,
    parent_pipe: ParentPipe = None,
    as_json: Json = False,
) -> None:
    """Run one bookie until Ctrl-C or SIGTERM.

    Settings come from defaults, then the file, then the environment (TALLYBOOK_...), then these options, each
    overriding the one before. Once it is ready, DIR/run.json has its pid and ports. SIGTERM or Ctrl-C stops it cleanly,
    with exit code 0, also before it is ready; a second one ends it at once, as a crash would. Other exit codes: 3 if it
    cannot start, 70 if it cannot guarantee durability any more, and the code of the error if it was running and had to
    stop for another reason.
    """
    settings = settings_of(
        BookieSettings, config, assignments, data_directory=data, metadata=metadata, bookie_id=bookie_id, listen=listen,
        http_listen=http, advertise=advertise, rack=rack, insecure=insecure,
    )  # fmt: skip
    if print_config:
        print_json(settings.model_dump(mode="json"))
        return
    set_up_log(log_level, log_format, as_json=as_json)
    run(_serve(settings, parent_pipe))


async def _serve(settings: BookieSettings, parent_pipe: int | None) -> None:
    ready, process = asyncio.Event(), RealProcess()
    stop = stop_event(process, parent_pipe)
    # Imported here because it takes long to load; below likewise.
    from tallybook.bookie.process.server import serve  # noqa: PLC0415

    try:
        check_own_permission(settings.security)
        check_directory(Path(settings.data_directory))
        for address in (settings.listen, settings.http_listen):
            await _check_host(address)
        await serve(settings, stop, process, ready)
    except TallybookError as error:
        if ready.is_set():
            error.args = (f"the bookie was running and has stopped: {error.message}",)
            raise
        if isinstance(error, DamagedFile):
            raise RefusedToStart(DamagedFile(f"{error.message}{way_forward(settings, error)}")) from error
        raise RefusedToStart(error) from error
    except OSError as error:
        raise RefusedToStart(disk_failed(error)) from error


async def _check_host(address: str) -> None:
    """Refuse a host that has no address, before any file is created."""
    host, _, port = address.rpartition(":")
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(_RESOLVE_SECONDS):
            await loop.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
    except (socket.gaierror, UnicodeError) as error:
        raise InvalidConfig(f"cannot listen on {address}: there is no host {host} ({_words(error)})") from error
    except TimeoutError as error:
        raise InvalidConfig(f"cannot listen on {address}: no name server answers for {host}") from error


def _words(error: socket.gaierror | UnicodeError) -> str:
    return str(error.strerror) if isinstance(error, socket.gaierror) else "not a name"


def way_forward(settings: BookieSettings, error: DamagedFile) -> str:
    """Advice about a data directory with which no bookie can start, as the end of a message."""
    data = settings.data_directory
    elsewhere = {"journal_directories": settings.journal_directories, "ledger_directories": settings.ledger_directories}
    # Without these options the bookie would not look there any more.
    named = [word for name, paths in elsewhere.items() if paths for word in ("--set", f"{name}={','.join(paths)}")]
    known_id = ["--id", settings.bookie_id] if settings.bookie_id else []
    init = ["tallybook", "bookie", "init"]
    accept = shlex.join([*init, "--accept-loss", "--data", data, *known_id, "--metadata", settings.metadata, *named])
    new_id = known_id or ["--id", "ID"]
    replace = shlex.join([*init, "--replace", "--data", data, *new_id, "--metadata", settings.metadata])
    all_of_it = ", ".join([data, *(path for paths in elsewhere.values() for path in paths)])
    # If the cookie is damaged, it is not known which bookie's directory it is, so that cannot be accepted as a loss.
    identity = f"{data.rstrip('/')}/cookie" in error.message
    return (
        "; restore it from a copy, "
        + ("" if identity else f"or accept that what cannot be found is lost: {accept}, ")
        + f"or give up what this bookie holds: move {all_of_it} away, then {replace}"
    )


@app.command()
def init(
    data: Data = None,
    metadata: OptionalMetadata = None,
    bookie_id: BookieId = None,
    config: ConfigFile = None,
    assignments: SettingOption = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Give up all copies in the old directory; the id gets a new one.")
    ] = False,
    accept: Annotated[
        bool, typer.Option("--accept-loss", help="Give up the missing parts of the directory, and keep the rest.")
    ] = False,
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="With --replace: even if ledgers rely on this bookie, or may rely on it. They are listed."
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Prepare a registered bookie to start again after its data directory, or a part of it, was lost.

    A bookie that was never registered needs no init: 'bookie run' creates its directory. A registered one refuses to
    start without its data, because the data may be elsewhere.

    With --accept-loss, what is missing counts as lost: the journal, a part of the directory, or one of its files. The
    bookie keeps the rest and serves it. For every ledger it answers UNKNOWN for entries that it does not have, and
    takes no ordinary adds, until the ledger was repaired. If nothing is lost, nothing changes.

    With --replace, everything counts as lost: the id gets a new, empty directory. This is refused while ledgers of this
    bookie lack copies at other bookies (replaced, lost, or with lost or damaged data), or may lack them at bookies that
    do not answer, and while this bookie has the only copies, of ledgers with a write quorum of 1.
    """
    if replace == accept:
        raise InvalidArgument(
            "give either --replace or --accept-loss; for a new bookie, 'bookie run' creates the directory"
        )
    settings = settings_of(
        BookieSettings, config, assignments, data_directory=data, metadata=metadata, bookie_id=bookie_id
    )

    # As above.
    from tallybook.bookie.directories.layout import replace_identity  # noqa: PLC0415
    from tallybook.bookie.recovery.accepted_loss import accept_loss  # noqa: PLC0415
    from tallybook.metadata.records.replaced_bookies import record_replacement  # noqa: PLC0415
    from tallybook.metadata.records.restored_store import ids_below, read_restore_record  # noqa: PLC0415

    from ..cluster_client import cluster  # noqa: PLC0415

    async def work() -> ResultFields:
        check_directory(Path(settings.data_directory))
        disk = RealDisk()
        lost: list[str] = []
        async with cluster(settings.metadata, ClientSettings(security=settings.security)) as client:
            store = client.world.store
            ids = partial(ids_below, store.id_counter, partial(read_restore_record, store))
            if accept:
                cookie, lost = await accept_loss(settings, disk, store, ids)
            else:
                check, note = partial(_check_others_are_whole, client, force=force), partial(record_replacement, store)
                cookie = await replace_identity(settings, disk, store, SystemRng(), ids, check=check, note=note)
        known = {"bookie_id": cookie.bookie_id, "directory_uuid": cookie.directory_uuid}
        report: ResultFields = {"lost": lost if as_json else "; ".join(lost) or "nothing"} if accept else {}
        return {**known, "data": settings.data_directory, **report}

    print_record(run(work()), as_json=as_json)


async def _check_others_are_whole(client: Client, bookie_id: str, *, force: bool) -> None:
    """Refuse to give up a bookie's copies while ledgers rely on them; with ``force`` only warn."""
    from tallybook.repair.status.reliance import find_reliance  # noqa: PLC0415 (as above)

    try:
        found = await find_reliance(client.world, bookie_id)
    except (DamagedFile, NewerFormat) as error:
        if not force:
            raise
        complain(f"{bookie_id} is given up, and it is not known which ledgers rely on it: {error.message}")
        return
    if not force:
        found.require_no_objections()
    for objection in found.objections:
        complain(f"{bookie_id} is given up, although {objection.what}")


@app.command("rebuild-index")
def rebuild_index(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Data directory of a stopped bookie.")],
    metadata: Metadata,
    config: ConfigFile = None,
    assignments: SettingOption = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Build the new index, show its contents, and discard it.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Rebuild the index of a stopped bookie from its entry logs.

    A bookie whose index is lost does this by itself when it starts. This command is for an index that may be wrong, and
    to see the result beforehand. Afterwards every ledger is in limbo until it was repaired: the bookie answers UNKNOWN
    for entries that it does not have, and takes no ordinary adds, because entry logs do not record which ledgers were
    fenced. The old index is kept beside the new one until the bookie has stopped cleanly once.
    """
    settings = settings_of(BookieSettings, config, assignments, data_directory=directory, metadata=metadata)

    # As above.
    from tallybook.bookie.process.server import IndexThreads  # noqa: PLC0415
    from tallybook.bookie.recovery.lost_index import rebuild_stopped  # noqa: PLC0415

    from ..cluster_client import cluster  # noqa: PLC0415

    async def work() -> ResultFields:
        clock, disk, threads = RealClock(), RealDisk(), IndexThreads(1)
        try:
            async with cluster(settings.metadata, ClientSettings(security=settings.security)) as client:
                path, report = await rebuild_stopped(
                    settings, disk, client.world.store, clock, SystemRng(),
                    partial(threads.open_index, disk, settings.storage),
                    dry_run=dry_run,
                )  # fmt: skip
        finally:
            await threads.close()
            await disk.close()
        facts = asdict(report)
        return {"index": None if dry_run else path, **(facts if as_json else _readable(facts))}

    print_record(run(work()), as_json=as_json)


def _readable(facts: ResultFields) -> ResultFields:
    """Lists as text."""
    return {name: "; ".join(value) or "none" if isinstance(value, list) else value for name, value in facts.items()}


@app.command("ls")
def list_(metadata: Metadata, as_json: Json = False) -> None:
    """List the registered bookies of a cluster."""

    rows = [_describe(info, as_json) for info in _living(metadata).values()]
    print_rows(rows, _COLUMNS, as_json=as_json)


@app.command()
def info(
    metadata: Metadata,
    bookie_id: Annotated[str, typer.Argument(metavar="BOOKIE", help="Id of the bookie.")],
    as_json: Json = False,
) -> None:
    """Show one registered bookie."""

    living = _living(metadata)
    if bookie_id not in living:
        raise NoSuchBookie(f"there is no bookie {bookie_id}; registered bookies: {', '.join(sorted(living)) or 'none'}")
    print_record(_describe(living[bookie_id], as_json), as_json=as_json)


app.command()(drain)
app.command()(readonly)


def _living(metadata: str) -> Mapping[str, BookieInfo]:
    """The registered bookies of a cluster."""
    # Imported here so that ``bookie run`` does not load a client.
    from ..cluster_client import cluster  # noqa: PLC0415

    async def work() -> Mapping[str, BookieInfo]:
        async with cluster(metadata) as client:
            return await client.bookies()

    with reading_only():
        return run(work())


def _describe(bookie: BookieInfo, as_json: bool) -> ResultFields:
    free_bytes = bookie.free_bytes or None  # not known
    return {
        "bookie_id": bookie.bookie_id,
        "mode": bookie.mode.value,
        "address": bookie.address,
        "http_address": bookie.http_address,
        "rack": bookie.rack,
        "free_bytes": free_bytes if as_json or free_bytes is None else human_bytes(free_bytes),
        "boot": bookie.incarnation.boot,
        "directory_uuid": bookie.incarnation.directory_uuid,
        "version": bookie.version or None,
    }
