"""``tallybook repair``: runs a repair process."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from tallybook.core.settings import ClientSettings, RepairSettings
from tallybook.runtime.tasks import Tasks
from tallybook.runtime.tuning import settle_memory

from ..cluster_client import cluster
from ..options import Json, Metadata
from ..output import complain, note, print_json
from ..running import run
from ..server_options import ConfigFile, Level, LogFormatOption, LogLevel, PrintConfig, set_up_log, settings_of

app = typer.Typer(help="Keep every ledger at its number of good copies.")


@app.command("run")
def run_(
    metadata: Metadata,
    config: ConfigFile = None,
    assignments: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="A setting, for example lost_after_s=60.")
    ] = None,
    print_config: PrintConfig = False,
    log_level: Level = LogLevel.INFO,
    log_format: LogFormatOption = None,
    as_json: Json = False,
) -> None:
    """Find ledgers with too few good copies and restore them, until Ctrl-C or SIGTERM.

    Any number of these processes may run: one of them is the auditor that creates tasks, and all of them do tasks.
    'cluster status' shows the findings.
    """
    settings = settings_of(RepairSettings, config, assignments)
    if print_config:
        print_json(settings.model_dump(mode="json"))
        return
    set_up_log(log_level, log_format, as_json=as_json)
    run(_run(metadata, settings))


async def _run(metadata: str, settings: RepairSettings) -> None:
    # Imported here because it takes long to load.
    from tallybook.repair.service import RepairService  # noqa: PLC0415

    tasks = Tasks("repair", lambda name, error: complain(f"the task {name} failed: {error!r}"))
    try:
        async with cluster(
            metadata, ClientSettings(security=settings.security, archive_keys=settings.archive_keys)
        ) as client:
            service = RepairService(client, settings)
            settle_memory()
            await service.serve(tasks)
    except asyncio.CancelledError:
        note("stopped")
    finally:
        await tasks.close()
