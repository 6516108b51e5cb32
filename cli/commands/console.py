"""``tallybook console``: the web console for operators."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Annotated

import typer

from tallybook.client.client import Client
from tallybook.core.settings import ConsoleSettings

from ..client_server import serve_cluster
from ..options import Json
from ..output import print_json
from ..running import run
from ..server_options import (
    ConfigFile,
    Level,
    LogFormatOption,
    LogLevel,
    OptionalMetadata,
    ParentPipe,
    PrintConfig,
    set_up_log,
    settings_of,
)

app = typer.Typer(help="Show a cluster in a browser, and let operators change how it runs.")


@app.callback()
def _group() -> None:
    """Make this a group of commands, though it has one only."""


@app.command("run")
def run_(
    metadata: OptionalMetadata = None,
    listen: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="HTTP address; port 0 is any free one.")
    ] = None,
    config: ConfigFile = None,
    assignments: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Any other setting, for example hosts=console.example."),
    ] = None,
    print_config: PrintConfig = False,
    log_level: Level = LogLevel.INFO,
    log_format: LogFormatOption = None,
    parent_pipe: ParentPipe = None,
    as_json: Json = False,
) -> None:
    """Run a console until Ctrl-C or SIGTERM.

    Prints one line when it is ready: 'ready' and the URL of its page. Any number of consoles may serve one cluster.
    SIGTERM or Ctrl-C stops it cleanly, with exit code 0; a second one ends it at once. Exit code 3 if it cannot start.
    """
    settings = settings_of(ConsoleSettings, config, assignments, metadata=metadata, listen=listen)
    if print_config:
        print_json(settings.model_dump(mode="json"))
        return
    set_up_log(log_level, log_format, as_json=as_json)
    scheme = "https" if settings.security else "http"

    def serving(client: Client) -> AbstractAsyncContextManager[str]:
        # A server takes long to load, and most commands are none.
        from tallybook.gateway.console.server import serving  # noqa: PLC0415

        return serving(client, settings)

    run(
        serve_cluster(
            settings,
            serving,
            lambda address: {"ready": f"{scheme}://{address}/"},
            parent_pipe=parent_pipe,
            as_json=as_json,
        )
    )
