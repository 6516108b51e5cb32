"""``tallybook console``: a cluster over HTTP, for operators and their browsers."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Annotated

import typer

from tallybook.core.config import ClientSettings, ConsoleSettings
from tallybook.core.errors import TallybookError
from tallybook.runtime.logging import set_up_logging
from tallybook.runtime.process import RealProcess, end_on_broken_invariants
from tallybook.runtime.settings import load_settings
from tallybook.runtime.tuning import settle_memory

from .bookie import LogFormat, LogLevel
from .cluster import cluster
from .exits import RefusedToStart
from .options import Json, assigned
from .output import print_json
from .parent import die_with_parent
from .running import on_signals, run

app = typer.Typer(help="Show a cluster in a browser, and let operators change how it runs.")


@app.callback()
def _group() -> None:
    """Make this a group of commands, though it has one only."""


@app.command("run")
def run_(
    metadata: Annotated[
        str | None, typer.Option("--metadata", envvar="TALLYBOOK_METADATA", metavar="URI", help="Metadata store.")
    ] = None,
    listen: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Where it serves; port 0 is any free one.")
    ] = None,
    config: Annotated[Path | None, typer.Option("--config", metavar="FILE", help="Settings in a TOML file.")] = None,
    assignments: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Any other setting, for example hosts=console.example."),
    ] = None,
    print_config: Annotated[bool, typer.Option("--print-config", help="Print the settings in force, and end.")] = False,
    log_level: Annotated[LogLevel, typer.Option(help="What is logged.")] = LogLevel.INFO,
    log_format: Annotated[
        LogFormat | None, typer.Option(help="How it is logged.", show_default="json with --json, else text")
    ] = None,
    parent_pipe: Annotated[int | None, typer.Option(hidden=True)] = None,
    as_json: Json = False,
) -> None:
    """Run a console until it is told to stop.

    Prints one line when it is ready: 'ready' and the URL of its page. Any number of consoles may serve one cluster.
    SIGTERM or Ctrl-C stops it cleanly, exit code 0; a second one ends it at once. It ends with exit code 3 if it cannot
    start.
    """
    given = {"metadata": metadata, "listen": listen}
    flags = {name: value for name, value in given.items() if value is not None}
    file = None if config is None else str(config)
    settings = load_settings(ConsoleSettings, file=file, overrides={**assigned(assignments), **flags})
    if print_config:
        print_json(settings.model_dump(mode="json"))
        return
    style = log_format or (LogFormat.JSON if as_json else LogFormat.TEXT)
    set_up_logging(log_level.value.upper(), style.value)
    run(_serve(settings, parent_pipe, as_json))


async def _serve(settings: ConsoleSettings, parent_pipe: int | None, as_json: bool) -> None:
    stop = asyncio.Event()
    end_on_broken_invariants(asyncio.get_running_loop(), RealProcess())
    on_signals(lambda _: stop.set())
    if parent_pipe is not None:
        die_with_parent(parent_pipe)
    # A server takes long to load, and most commands are none.
    from tallybook.gateway.console.server import serving  # noqa: PLC0415

    ready = False
    try:
        async with cluster(settings.metadata, _client(settings)) as client, serving(client, settings) as address:
            ready = True
            settle_memory()
            url = f"{'https' if settings.security else 'http'}://{address}/"
            print(json.dumps({"ready": url, "pid": os.getpid()}) if as_json else f"ready {url}", flush=True)
            await stop.wait()
    except TallybookError as error:
        if ready:
            raise
        raise RefusedToStart(error) from error


def _client(settings: ConsoleSettings) -> ClientSettings:
    """Of the client that a console is: it goes by the same certificate."""
    return settings.client.model_copy(update={"security": settings.client.security or settings.security})
