"""``tallybook cluster``: status, check, audit, require-security, diagnose."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Collection, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final, cast

import typer

from tallybook.client.client import Client
from tallybook.core.errors import InvalidArgument
from tallybook.core.quantities import counted
from tallybook.core.settings import RepairSettings
from tallybook.metadata.ledger.model import LedgerMetadata
from tallybook.metadata.records.security_required import require_security
from tallybook.metadata.records.update import RecordUpdater
from tallybook.runtime.settings import load_settings

from ..cluster_client import cluster
from ..exits import Exit, reading_only
from ..options import Json, Metadata, as_ledger_id, assigned
from ..output import ResultFields, complain, plain, print_json, print_record, print_rows
from ..progress import Progress, human_bytes, show_progress
from ..running import run
from .diagnose import diagnose

if TYPE_CHECKING:
    from tallybook.repair.auditor import AuditReport
    from tallybook.repair.ledger_walk import WalkFindings
    from tallybook.repair.status.check import CopyCheck, LedgerCheck
    from tallybook.repair.status.overview import Overview

app = typer.Typer(help="Check the copies of a cluster, start an audit, and find its bottleneck.")
app.command()(diagnose)

_BOOKIE_COLUMNS: Final = (
    "bookie_id", "mode", "rack", "disk_used", "free_bytes", "ledgers", "damaged", "in_limbo", "entry_logs", "log_bytes",
)  # fmt: skip

_LABELS: Final = {
    "silent": "no answer",
    "under_replicated": "under-replicated",
    "moving": "leave a draining bookie",
    "needing": "reasons",
    "to_end": "to recover",
    "by_hand": "need an operator",
    "in_one_rack": "all copies in one rack",
    "unreadable": "unreadable metadata",
    "tasks": "tasks in progress",
    "paused_since_ms": "repair paused since",
    "tasks_handed_out": "tasks created",
}
_ALWAYS_SHOWN: Final = ("ledgers", "under_replicated", "tasks", "tasks_handed_out")


@app.command()
def status(metadata: Metadata, as_json: Json = False) -> None:
    """Show the state of bookies, ledgers, copies and repair. Exit code 1 if anything is wrong.

    Bookies are asked and ledgers are counted now. The number of ledgers with too few good copies comes from the last
    audit; 'cluster check' asks the bookies.
    """
    with reading_only():
        found = run(_status(metadata))
    if as_json:
        from tallybook.repair.status.report import overview_json  # noqa: PLC0415

        print_json(overview_json(found))
    else:
        _show(found)
    if found.problems:
        raise typer.Exit(Exit.FOUND_WRONG)


async def _status(metadata: str) -> Overview:
    from tallybook.repair.status.overview import overview  # noqa: PLC0415 (a command that is none of these has no use for it)

    async with cluster(metadata) as client:
        return await overview(client.world)


def _show(found: Overview) -> None:
    from tallybook.repair.status.report import bookie_json  # noqa: PLC0415 (as above)

    from ..disks import DISK_COLUMNS, disk_rows, free_bytes_of_fullest  # noqa: PLC0415 (as above)

    rows = []
    for bookie in found.bookies:
        row = dict(bookie_json(bookie))
        if bookie.status is not None:
            row["disk_used"] = f"{bookie.status.disk_used_fraction:.0%}"
            row["free_bytes"] = human_bytes(free_bytes_of_fullest(bookie.status))
            row["log_bytes"] = human_bytes(bookie.status.entry_log_bytes)
        rows.append(row)
    print_rows(rows, _BOOKIE_COLUMNS, as_json=False)
    disks = disk_rows(found.bookies)
    if disks:
        print()
        print_rows(disks, DISK_COLUMNS, as_json=False)
    print()
    print_record({"ledgers": _ledgers(found), "copies": _copies(found), **_archive(found)}, as_json=False)
    print()
    for bookie in found.bookies:
        if bookie.draining:
            print(bookie.draining)
    for problem in found.problems:
        print(f"wrong: {problem}")
    if not found.problems:
        print("healthy")


def _ledgers(found: Overview) -> str:
    ledgers = found.ledgers
    if ledgers is None:
        return "not counted"
    states = ", ".join(f"{count:,} {state.replace('_', ' ')}" for state, count in sorted(ledgers.states.items()))
    more = "" if ledgers.complete else "; there may be others"
    return f"{ledgers.total:,}{': ' * bool(states)}{states}{more}"


def _copies(found: Overview) -> str:
    if found.under_replicated is None or found.walk_age_s is None:
        text = "not audited yet"
    else:
        lack = counted(found.under_replicated, "ledger has", "ledgers have")
        text = f"{lack} too few, as of the repair's last audit, {found.walk_age_s:,} s ago"
    reasons = f" ({plain(found.why_too_few)})" if found.why_too_few and found.under_replicated else ""
    if found.moving:
        reasons += f"; {counted(found.moving, 'is', 'are')} being moved off draining bookies"
    paused = ""
    if found.paused_since_ms is not None:
        paused = "; the repair is paused since " + _moment(found.paused_since_ms)
    return f"{text}{reasons}; {counted(found.tasks, 'task')} in progress{paused}"


def _archive(found: Overview) -> ResultFields:
    ledgers = found.ledgers
    if found.archive is None or ledgers is None:
        return {}
    text = f"{counted(ledgers.archived, 'ledger')} in {found.archive}, {ledgers.released:,} of them only there"
    return {"archive": f"{text}; {human_bytes(ledgers.waiting_bytes)} of closed ledgers are not in it yet"}


@app.command()
def check(
    metadata: Metadata,
    ledgers: Annotated[
        list[int] | None,
        typer.Argument(metavar="[LEDGER]...", parser=as_ledger_id, help="Check only these.", show_default="all"),
    ] = None,
    read: Annotated[
        bool, typer.Option("--read", help="Read and verify every copy, instead of asking whether it exists.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Ask every bookie for every copy that it should have, and list missing and damaged copies.

    Exit code 1 if there are any, or if not all ledgers could be checked, for example because the metadata are an older
    copy. The command changes nothing, and can be interrupted at any time. For the last fragment of an open ledger it
    only lists bookies that lost their data, know damage or do not answer. Ledgers whose copies the bookies may drop are
    left out. With --json the result comes at the end, with the ledgers with a problem in the list "details".
    """
    with reading_only():
        totals = run(_check(metadata, ledgers or [], read, as_json))
    if as_json:
        print_json(totals)
    else:
        text = f"{human_bytes(cast('int', totals['read_bytes']))} read, " if read else ""
        lacking = cast("int", totals["lacking_ledgers"])
        print(
            f"{counted(totals['ledgers'], 'ledger')}, {counted(totals['places'], 'fragment replica')}, {text}"
            f"{counted(lacking, 'ledger lacks', 'ledgers lack') if lacking else 'no ledger lacks'} good copies"
        )
    if totals["lacking_ledgers"] or totals["unreadable"] or totals["metadata_behind"] or not totals["complete"]:
        raise typer.Exit(Exit.FOUND_WRONG)


async def _check(metadata: str, wanted: list[int], read: bool, as_json: bool) -> Any:
    from tallybook.repair.status.check import CopyCheck  # noqa: PLC0415

    async with cluster(metadata) as client:
        world = client.world
        copies = CopyCheck(world.store, world.connections, read=read)
        progress = Progress("checking", world.clock, unit="ledgers done")
        async with show_progress(progress, world.clock, lambda: (copies.totals.ledgers, copies.totals.read_bytes)):
            findings, details = await _check_all(client, copies, wanted, as_json)
        totals = copies.totals
        return {
            "ledgers": totals.ledgers,
            "places": totals.places,
            "read_bytes": totals.read_bytes,
            "lacking_ledgers": totals.lacking_ledgers,
            "unreadable": findings.unreadable,
            "metadata_behind": await _is_behind(client),
            "complete": findings.complete,
            "details": details,
        }


async def _is_behind(client: Client) -> bool:
    """Whether the metadata were restored from an older copy: what they do not name is not checked."""
    from tallybook.metadata.records.restored_store import REMEDY, unapproved_restore  # noqa: PLC0415

    found = await unapproved_restore(client.world.store)
    if found is not None:
        complain(f"{found.description}; ledgers that it does not know were not checked: {REMEDY}")
    return found is not None


async def _check_all(
    client: Client, copies: CopyCheck, wanted: list[int], as_json: bool
) -> tuple[WalkFindings, list[ResultFields]]:
    """Check ledgers; returns which could not be checked. Prints their problems, or with ``as_json`` returns them."""
    from tallybook.repair.ledger_walk import WalkFindings, all_ledgers  # noqa: PLC0415

    findings, details = WalkFindings(complete=bool(wanted)), list[ResultFields]()
    ledgers = _these(client, wanted) if wanted else all_ledgers(client.world.store, findings)
    async for found in copies.check_all(ledgers):
        if found.good:
            continue
        if as_json:
            details.append({"ledger_id": found.ledger_id, "lacks": _lacks(found), "more": found.more})
        else:
            _show_lacks(found)
    if findings.unreadable:
        complain(f"the metadata of {findings.unreadable} ledgers cannot be decoded, so they were not checked")
    if not findings.complete:
        complain("the listing of ledgers was incomplete: others were not checked")
    return findings, details


async def _these(client: Client, wanted: Collection[int]) -> AsyncIterator[LedgerMetadata]:
    for ledger_id in wanted:
        yield await client.ledger_metadata(ledger_id)


def _lacks(found: LedgerCheck) -> list[ResultFields]:
    return [{"ledger_id": found.ledger_id, **lack._asdict()} for lack in found.lacks]


def _show_lacks(found: LedgerCheck) -> None:
    for row in _lacks(found):
        why = f" ({row['why']})" if row["why"] else ""
        print(
            f"ledger {row['ledger_id']}  {row['bookie_id']}  entries {row['first']} to {row['last']}  "
            f"{row['verdict']}{why}",
            flush=True,
        )
    if found.more:
        print(f"ledger {found.ledger_id}  and {found.more:,} more ranges", flush=True)


@app.command()
def audit(
    metadata: Metadata,
    lost: Annotated[
        list[str] | None,
        typer.Option(metavar="BOOKIE", help="Treat this bookie as lost now: it will not come back."),
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until the tasks are done, then audit again.")] = False,
    timeout: Annotated[float, typer.Option(metavar="SECONDS", help="How long --wait waits.", min=1)] = 3600,
    pause: Annotated[bool, typer.Option("--pause", help="Pause the repair of the whole cluster.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Undo --pause.")] = False,
    assignments: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="A setting, as for 'repair run'.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Walk over all ledgers now, and create repair tasks for the processes of 'tallybook repair run'.

    Prints the findings. Exit code 1 if ledgers have too few good copies; with --wait, if they still have then. Ledgers
    that only leave a draining bookie have enough copies. With --pause or --resume the command does only that: while the
    repair is paused, the auditor continues to report, and nothing is copied. The findings are only printed: 'cluster
    status' shows those of the last audit by 'repair run', which knows how long each bookie has been away.
    """
    if pause and resume:
        raise InvalidArgument("either --pause or --resume")
    if pause or resume:
        since = run(_pause(metadata, pause))
        text = "the repair is running" if since is None else f"the repair is paused since {_moment(since)}"
        print_record({"paused_since_ms": since} if as_json else {"repair": text}, as_json=as_json)
        return
    settings = load_settings(RepairSettings, overrides=assigned(assignments))
    found = run(_audit(metadata, settings, lost or [], timeout if wait else None))
    print_record(found if as_json else _for_people(found), as_json=as_json)
    if found["under_replicated"] or found["unreadable"]:
        raise typer.Exit(Exit.FOUND_WRONG)


async def _audit(metadata: str, settings: RepairSettings, lost: list[str], timeout_s: float | None) -> ResultFields:
    from tallybook.repair.audit_pass import SingleAudit  # noqa: PLC0415

    async with cluster(metadata) as client:
        clock = client.world.clock
        single_audit = SingleAudit(client, settings, lost)
        found = await single_audit.audit()
        for name in lost:
            if name in found.alive:
                complain(f"{name} is registered, so it does not count as lost")
            elif await client.world.store.read_cookie(name) is None:
                complain(f"there is no bookie {name}: 'cluster status' lists them")
        for name in sorted(found.silent):
            complain(f"{name} does not answer: it is not known whether it lost data or has damaged copies")
        if timeout_s is not None and found.paused_since_ms is not None:
            complain("the repair is paused, so --wait has no effect: resume it with 'cluster audit --resume'")
        elif timeout_s is not None:
            progress = Progress("tasks of the repair", clock, unit="left")
            async with show_progress(progress, clock, lambda: (len(single_audit.tasks), 0)):
                await single_audit.wait_until_done(timeout_s)
            found = await single_audit.audit(publish=False)
        return _findings(found, single_audit.published)


def _findings(found: AuditReport, published: int) -> ResultFields:
    from tallybook.repair.service import audit_json  # noqa: PLC0415

    return {**audit_json(found), "tasks_handed_out": published}


def _for_people(found: Mapping[str, Any]) -> ResultFields:
    """The findings with labels for people. Except for the main figures, those that are zero or empty are left out."""
    from tallybook.repair.status.drain import some_ids  # noqa: PLC0415

    shown = dict(found)
    shown["by_hand"] = some_ids(found["by_hand"], found["by_hand_count"])
    del shown["by_hand_count"]
    since = found["paused_since_ms"]
    shown["paused_since_ms"] = since and _moment(since)
    return {_LABELS.get(name, name): value for name, value in shown.items() if value or name in _ALWAYS_SHOWN}


async def _pause(metadata: str, wanted: bool) -> int | None:
    from tallybook.repair.pause import pause, paused_since, resume  # noqa: PLC0415

    async with cluster(metadata) as client:
        world = client.world
        records = RecordUpdater(world.store, world.clock, world.rng.fork("records"))
        if wanted:
            await pause(records, world.clock.wall_us() // 1000)
        else:
            await resume(records)
        return await paused_since(world.store)


@app.command("require-security")
def require_security_(
    metadata: Metadata,
    off: Annotated[
        bool, typer.Option("--off", help="Let processes without security change the metadata again.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Record that processes without a security directory may only read the metadata of this cluster.

    Bookies that start with security record it themselves. With --off, a cluster can run without security again: stop
    all of its processes first.
    """
    run(_require_security(metadata, required=not off))
    text = "the cluster no longer requires security" if off else "the cluster requires security"
    print_record({"required": not off} if as_json else {"security": text}, as_json=as_json)


async def _require_security(metadata: str, *, required: bool) -> None:
    async with cluster(metadata) as client:
        world = client.world
        await require_security(world.store, world.clock, world.rng.fork("security"), required=required)


def _moment(milliseconds: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(milliseconds / 1000))
