"""``tallybook up``: runs a cluster on this machine, for development and tests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from tallybook.runtime.clock import RealClock
from tallybook.runtime.disk.os_disk import RealDisk
from tallybook.runtime.tasks import Tasks, raise_defect

from ..exits import Exit, Interrupted
from ..local.console import LocalConsole, run_console
from ..local.gateway import LocalGateway, run_gateway
from ..local.launcher import LocalBookie, LocalCluster, how_it_ended
from ..local.maintenance import LocalMaintenance, check_archive
from ..options import Json, directory
from ..output import complain, note, print_json
from ..running import run


def up(
    bookies: Annotated[
        int | None,
        typer.Option(min=1, max=64, help="Number of bookies.", show_default="as many as in DIR; 3 in a new one"),
    ] = None,
    data: Annotated[
        Path,
        typer.Option(parser=directory, metavar="DIR", help="Directory for all data; created if it does not exist."),
    ] = Path("tallybook-data"),
    assignments: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="A setting for every bookie, as for 'bookie run'."),
    ] = None,
    archive: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Where closed ledgers are archived: s3://BUCKET/PATH, the same with gs:// or az://, or file:///PATH.",
            show_default="DIR/archive in a new cluster",
        ),
    ] = None,
    offload: Annotated[bool, typer.Option(help="Archive closed ledgers, as 'offload run' does.")] = True,
    repair: Annotated[bool, typer.Option(help="Restore lost copies, as 'repair run' does.")] = True,
    gateway: Annotated[bool, typer.Option(help="Also run a gateway for programs in any language.")] = True,
    gateway_listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="gRPC address of the gateway; port 0 is any free one.")
    ] = "127.0.0.1:0",
    console: Annotated[bool, typer.Option(help="Also run a web console.")] = True,
    console_listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Address of the console; port 0 is any free one.")
    ] = "127.0.0.1:0",
    as_json: Json = False,
) -> None:
    """Run a cluster on this machine until Ctrl-C.

    Prints one line when it is ready: 'ready' and the URI of the metadata store, for the option --metadata of other
    commands. The bookies are separate processes; DIR/bookie-N/run.json has their pid and ports, DIR/bookie-N.log their
    log. They end with this command, however it ends, and are not restarted if they die. Run it again with the same DIR
    for the same cluster. The gateway and the console are processes of the same kind; they log to DIR/gateway.log and
    DIR/console.log. Their addresses are shown on a terminal, and are part of the line with --json.
    """
    options = [word for assignment in assignments or [] for word in ("--set", assignment)]
    cluster = LocalCluster(data, bookies, RealDisk(), RealClock(), tuple(options))
    code = Exit.OK
    try:
        servers = _Servers(gateway_listen if gateway else None, console_listen if console else None)
        code = run(_up(cluster, _Helpers(archive, offload, repair), servers, as_json))
    except Interrupted:
        note("stopped")
    # A bookie that got the stop signal while it was still starting may be ended by the signal itself.
    if code or any(bookie.ports and bookie.process and bookie.process.returncode for bookie in cluster.bookies):
        raise typer.Exit(Exit.FOUND_WRONG)


class _Helpers(NamedTuple):
    """The offloader and the repair: whether they run."""

    archive: str | None
    offload: bool
    repair: bool


class _Servers(NamedTuple):
    """The addresses of gateway and console; ``None``: not started."""

    gateway: str | None
    console: str | None


async def _up(cluster: LocalCluster, helpers: _Helpers, servers: _Servers, as_json: bool) -> Exit:
    if helpers.offload and helpers.archive is not None:
        await check_archive(helpers.archive)
    async with cluster:
        await cluster.start()
        async with AsyncExitStack() as undo:
            maintenance = LocalMaintenance(cluster, helpers.archive, offload=helpers.offload, repair=helpers.repair)
            undo.callback(maintenance.close)
            gateway = console = None
            if servers.gateway:
                gateway = await undo.enter_async_context(run_gateway(cluster, servers.gateway))
            if servers.console:
                processes = [*([gateway.http_address] if gateway else ()), *maintenance.addresses]
                console = await undo.enter_async_context(run_console(cluster, servers.console, processes))
            _announce(cluster, gateway, console, as_json)
            try:
                async with maintenance.running(), _watching({"gateway": gateway, "console": console}):
                    await asyncio.gather(*(_report_end(bookie) for bookie in cluster.bookies))
            except asyncio.CancelledError:
                note("stopping; again to end at once")
                raise
    complain("every bookie has ended")
    return Exit.FOUND_WRONG


@asynccontextmanager
async def _watching(servers: Mapping[str, LocalGateway | LocalConsole | None]) -> AsyncIterator[None]:
    """Print a warning if a server ends meanwhile. The cluster works without it, too."""
    tasks = Tasks("up", raise_defect("tallybook up"))
    for name, server in servers.items():
        if server is not None:
            tasks.spawn(_report_end_of(name, server.process), name=name)
    try:
        yield
    finally:
        await tasks.close()


async def _report_end_of(name: str, process: asyncio.subprocess.Process) -> None:
    returncode = await process.wait()
    complain(f"the {name} (pid {process.pid}) {how_it_ended(returncode)} and is not restarted")


def _announce(cluster: LocalCluster, gateway: LocalGateway | None, console: LocalConsole | None, as_json: bool) -> None:
    """Print the ready line on standard output, and notes on a terminal."""
    if as_json:
        bookies: list[object] = [
            {"bookie_id": bookie.bookie_id, "pid": bookie.pid, "ports": dict(bookie.ports)}
            for bookie in cluster.bookies
        ]
        served = gateway and {
            "pid": gateway.process.pid,
            "address": gateway.address,
            "http_address": gateway.http_address,
        }
        shown = console and {"pid": console.process.pid, "url": console.url}
        print_json({"ready": cluster.metadata, "bookies": bookies, "gateway": served, "console": shown})
    else:
        print(f"ready {cluster.metadata}", flush=True)
    for bookie in cluster.bookies:
        where = ", ".join(f"{name} on port {port}" for name, port in bookie.ports.items())
        note(f"{bookie.bookie_id}: pid {bookie.pid}, {where}")
    if gateway is not None:
        note(f"gateway: pid {gateway.process.pid}, gRPC at {gateway.address}, http at {gateway.http_address}")
    if console is not None:
        note(f"console: pid {console.process.pid}, {console.url}")
    for bookie_id in cluster.left_out:
        complain(f"{cluster.directory} holds {bookie_id} as well, which was not started")


async def _report_end(bookie: LocalBookie) -> None:
    """Wait until a bookie ends, and print a warning."""
    if bookie.process is not None:
        returncode = await bookie.process.wait()
        bookie.forget()
        complain(f"{bookie.bookie_id} (pid {bookie.pid}) {how_it_ended(returncode)} and is not restarted")
