"""``tallybook gateway``: the gRPC gateway for programs in any language."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Annotated

import typer

from tallybook.client.client import Client
from tallybook.core.settings import GatewaySettings

from ..client_server import serve_cluster
from ..options import Json
from ..output import print_json
from ..running import run
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

if TYPE_CHECKING:
    from tallybook.gateway.server import ListenAddresses

app = typer.Typer(help="Serve ledgers and streams over gRPC, to programs in any language.")


@app.callback()
def _group() -> None:
    """Make this a group of commands, though it has one only."""


@app.command("run")
def run_(
    metadata: OptionalMetadata = None,
    listen: GrpcListen = None,
    http: HttpListen = None,
    insecure: InsecureOption = False,
    config: ConfigFile = None,
    assignments: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Any other setting, for example max_streams=64."),
    ] = None,
    print_config: PrintConfig = False,
    log_level: Level = LogLevel.INFO,
    log_format: LogFormatOption = None,
    parent_pipe: ParentPipe = None,
    as_json: Json = False,
) -> None:
    """Run a gateway until Ctrl-C or SIGTERM.

    Prints one line when it is ready: 'ready' and the address for gRPC clients. Any number of gateways may serve one
    cluster. SIGTERM or Ctrl-C stops it cleanly, with exit code 0: it closes the ledgers and streams that it writes. A
    second one ends it at once. Exit code 3 if it cannot start.
    """
    settings = settings_of(
        GatewaySettings, config, assignments, metadata=metadata, listen=listen, http_listen=http, insecure=insecure
    )
    if print_config:
        print_json(settings.model_dump(mode="json"))
        return
    set_up_log(log_level, log_format, as_json=as_json)

    def serving(client: Client) -> AbstractAsyncContextManager[ListenAddresses]:
        # Imported here because it takes long to load.
        from tallybook.gateway.server import serving  # noqa: PLC0415

        return serving(client, settings)

    run(
        serve_cluster(
            settings,
            serving,
            lambda addresses: {"ready": addresses.grpc, "http": addresses.http},
            parent_pipe=parent_pipe,
            as_json=as_json,
        )
    )
