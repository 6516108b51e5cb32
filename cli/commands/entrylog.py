"""``tallybook entrylog``: prints and verifies the entry logs of a stopped bookie."""

from __future__ import annotations

import json
from collections.abc import Sequence

import typer

from tallybook.bookie.storage.entry_log.format import Footer, parse_log_name
from tallybook.bookie.storage.entry_log.inspect import (
    Found,
    FoundBatch,
    FoundLog,
    FoundStretch,
    LaterFormat,
    LogReport,
    inspect_entry_log,
    lost_bytes,
    verify_entry_log,
)
from tallybook.bookie.storage.entry_log.scan import LogDamage
from tallybook.runtime.disk.port import Disk

from ..exits import Exit, refuse_later_formats
from ..offline import DirectoryArgument, stopped
from ..options import Json
from ..output import ResultFields, print_json, print_rows
from ..running import run

app = typer.Typer(help="Inspect the entry logs of a stopped bookie.")

_COLUMNS = ("log", "bytes", "finished", "batches", "ledgers", "damage", "later_format")


@app.command()
def dump(directory: DirectoryArgument, as_json: Json = False) -> None:
    """Print the contents of the entry logs: every batch, in the order of the files, and any damage.

    Exit code 6 if some of it has a later format.
    """

    async def work() -> list[str]:
        later = []
        async with stopped(directory, "ledgers") as (disk, directories):
            for path in await _logs(disk, directories):
                async for found in inspect_entry_log(disk, path):
                    fields = {"log": _name(path), **_fields(found)}
                    print(json.dumps(fields) if as_json else " ".join(f"{k}={v}" for k, v in fields.items()))
                    if isinstance(found, LaterFormat):
                        later.append(found.what)
        return later

    refuse_later_formats(run(work()))


@app.command()
def verify(directory: DirectoryArgument, as_json: Json = False) -> None:
    """Check every batch in every entry log, and that no log is missing or truncated.

    Exit code 1 if anything durable is damaged or lost. Data of a later format is listed separately; if that is all that
    was found, the exit code is 6.
    """

    async def work() -> tuple[list[LogReport], list[LogDamage | LaterFormat]]:
        async with stopped(directory, "ledgers") as (disk, directories):
            reports = [await verify_entry_log(disk, path) for path in await _logs(disk, directories)]
            return reports, [lost for each in directories for lost in await lost_bytes(disk, each)]

    reports, lost = run(work())
    found = [*lost, *(each for report in reports for each in (*report.damage, *report.later))]
    damaged = [each.what for each in found if isinstance(each, LogDamage)]
    later = [each.what for each in found if isinstance(each, LaterFormat)]
    summaries = [_summary(report) for report in reports]
    if as_json:
        print_json({"logs": summaries, "damage": damaged, "later_format": later})
    else:
        print_rows(summaries, _COLUMNS, as_json=False)
        for what in damaged:
            print(f"damaged: {what}")
        for what in later:
            print(f"of a later format: {what}")
    if damaged:
        raise typer.Exit(Exit.FOUND_WRONG)
    refuse_later_formats(later)


async def _logs(disk: Disk, directories: Sequence[str]) -> list[str]:
    """Paths of the entry logs, oldest first."""
    paths = [f"{directory}/{name}" for directory in directories for name in await disk.list(directory)]
    found = [(log_id, path) for path in paths if (log_id := parse_log_name(_name(path))) is not None]
    return [path for _, path in sorted(found)]


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _summary(report: LogReport) -> ResultFields:
    return {
        "log": _name(report.path),
        "bytes": report.size,
        "finished": report.finished,
        "batches": report.batches,
        "ledgers": len(report.ledgers),
        "damage": len(report.damage),
        "later_format": len(report.later),
    }


def _fields(found: Found) -> dict[str, object]:
    """The fields of one item in a log."""
    match found:
        case FoundLog():
            return {"kind": "log", "directory_uuid": found.directory_uuid, "log_id": found.log_id, "bytes": found.size}
        case FoundStretch():
            return {"kind": "stretch", "offset": found.offset, "batches": found.batch_count, "bytes": found.batch_bytes}
        case FoundBatch():
            header, location = found
            return {
                "kind": "batch",
                "offset": location.offset,
                "bytes": location.size,
                "ledger_id": header.ledger_id,
                "first_entry_id": header.first_entry_id,
                "last_entry_id": header.last_entry_id,
                "lac": header.lac,
            }
        case Footer():
            return {"kind": "footer", "offset": found.offset, "ledgers": len(found.ledgers)}
        case LaterFormat():
            return {"kind": "later format", "offset": found.offset, "problem": found.what}
        case _:
            return {"kind": "damage", "offset": found.offset, "bytes": found.size, "problem": found.what}
