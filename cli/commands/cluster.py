"""``tallybook cluster``: status, check, audit, diagnose. How its copies are, and a round of the auditor on demand."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Collection
from typing import TYPE_CHECKING, Annotated, Any, Final, cast

import typer

from tallybook.client.client import Client
from tallybook.core.config import RepairSettings
from tallybook.core.counted import counted
from tallybook.core.errors import InvalidArgument
from tallybook.metadata.model import LedgerMetadata
from tallybook.metadata.record_update import RecordUpdater
from tallybook.metadata.secured import require_security
from tallybook.runtime.settings import load_settings

from .cluster import cluster
from .diagnose import diagnose
from .exits import Exit, reading_only
from .options import Json, Metadata, assigned
from .output import Record, complain, plain, print_json, print_record, print_rows
from .progress import Progress, human_bytes, watched
from .running import run

if TYPE_CHECKING:
    from tallybook.repair.auditor import Audit
    from tallybook.repair.check import CopyCheck, LedgerCheck
    from tallybook.repair.overview import Overview
    from tallybook.repair.walk import Findings

app = typer.Typer(help="Look at a cluster's copies, have them looked after, and see what it waits for.")
app.command()(diagnose)

_BOOKIE_COLUMNS: Final = (
    "bookie_id", "mode", "rack", "disk_used", "free_bytes", "ledgers", "damaged", "in_limbo", "entry_logs", "log_bytes",
)  # fmt: skip


@app.command()
def status(metadata: Metadata, as_json: Json = False) -> None:
    """Show bookies, ledgers, copies and repair at one glance. Exit code 1 if anything is wrong.

    Bookies are asked now, and ledgers counted now. Which of them have too few good copies is what the auditor found
    last; 'cluster check' asks the bookies.
    """
    with reading_only():
        found = run(_status(metadata))
    if as_json:
        from tallybook.repair.told import overview_told  # noqa: PLC0415

        print_json(overview_told(found))
    else:
        _show(found)
    if found.problems:
        raise typer.Exit(Exit.FOUND_WRONG)


async def _status(metadata: str) -> Overview:
    from tallybook.repair.overview import overview  # noqa: PLC0415 (a command that is none of these has no use for it)

    async with cluster(metadata) as client:
        return await overview(client.world)


def _show(found: Overview) -> None:
    from tallybook.repair.told import bookie_told  # noqa: PLC0415 (as above)

    from .disks import DISK_COLUMNS, disk_rows, free_where_fullest  # noqa: PLC0415 (as above)

    rows = []
    for bookie in found.bookies:
        row = dict(bookie_told(bookie))
        if bookie.status is not None:
            row["disk_used"] = f"{bookie.status.disk_used_fraction:.0%}"
            row["free_bytes"] = human_bytes(free_where_fullest(bookie.status))
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
        told = "nobody has audited them"
    else:
        told = (
            f"{counted(found.under_replicated, 'ledger has', 'ledgers have')} too few, as of {found.walk_age_s:,} s ago"
        )
    reasons = f" ({plain(found.why_too_few)})" if found.why_too_few and found.under_replicated else ""
    if found.moving:
        reasons += f"; {counted(found.moving, 'is', 'are')} being moved off bookies to be emptied"
    paused = ""
    if found.paused_since_ms is not None:
        paused = "; the repair is paused since " + _moment(found.paused_since_ms)
    return f"{told}{reasons}; {counted(found.tasks, 'task')} under way{paused}"


def _archive(found: Overview) -> Record:
    ledgers = found.ledgers
    if found.archive is None or ledgers is None:
        return {}
    told = f"{counted(ledgers.archived, 'ledger')} in {found.archive}, {ledgers.released:,} of them there alone"
    return {"archive": f"{told}; {human_bytes(ledgers.waiting_bytes)} of closed ledgers are not in it yet"}


@app.command()
def check(
    metadata: Metadata,
    ledgers: Annotated[
        list[int] | None, typer.Argument(metavar="[LEDGER]...", help="Only these.", show_default="all")
    ] = None,
    read: Annotated[
        bool, typer.Option("--read", help="Read every copy whole and verify it, instead of asking whether it is there.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Ask every bookie for every copy that it should have, and tell what lacks.

    Exit code 1 if anything does, or if not all could be looked at, as where the metadata are an older copy.
    It changes nothing, and can be interrupted at any time. Of what grows at the end of an open ledger it tells only
    which bookies lost their data or do not answer, and it leaves out ledgers whose copies the bookies may drop. With
    --json there is a line for each ledger that lacks something, and one with the totals at the end.
    """
    with reading_only():
        totals = run(_check(metadata, ledgers or [], read, as_json))
    if as_json:
        print_json(totals)
    else:
        told = f"{human_bytes(cast('int', totals['read_bytes']))} read, " if read else ""
        lacking = cast("int", totals["lacking_ledgers"])
        print(
            f"{counted(totals['ledgers'], 'ledger')}, {counted(totals['places'], 'place')}, {told}"
            f"{counted(lacking, 'ledger lacks', 'ledgers lack') if lacking else 'no ledgers lack'} something"
        )
    if totals["lacking_ledgers"] or totals["unreadable"] or totals["metadata_behind"] or not totals["complete"]:
        raise typer.Exit(Exit.FOUND_WRONG)


async def _check(metadata: str, wanted: list[int], read: bool, as_json: bool) -> Any:
    from tallybook.repair.check import CopyCheck  # noqa: PLC0415

    async with cluster(metadata) as client:
        world = client.world
        copies = CopyCheck(world.store, world.connections, read=read)
        progress = Progress("checking", world.clock, unit="ledgers done")
        async with watched(progress, world.clock, lambda: (copies.totals.ledgers, copies.totals.read_bytes)):
            findings = await _check_all(client, copies, wanted, as_json)
        totals = copies.totals
        return {
            "ledgers": totals.ledgers,
            "places": totals.places,
            "read_bytes": totals.read_bytes,
            "lacking_ledgers": totals.lacking_ledgers,
            "unreadable": findings.unreadable,
            "metadata_behind": await _is_behind(client),
            "complete": findings.complete,
        }


async def _is_behind(client: Client) -> bool:
    """Whether the metadata were restored from an older copy: what they do not name is not checked."""
    from tallybook.metadata.behind import REMEDY, unapproved  # noqa: PLC0415

    found = await unapproved(client.world.store)
    if found is not None:
        complain(f"{found.told}; ledgers that it does not know were not checked: {REMEDY}")
    return found is not None


async def _check_all(client: Client, copies: CopyCheck, wanted: list[int], as_json: bool) -> Findings:
    """Tell what lacks; what could not be looked at."""
    from tallybook.repair.walk import Findings, all_ledgers  # noqa: PLC0415

    findings = Findings(complete=bool(wanted))
    ledgers = _these(client, wanted) if wanted else all_ledgers(client.world.store, findings)
    async for found in copies.all(ledgers):
        if not found.good:
            _show_lacks(found, as_json)
    if findings.unreadable:
        complain(f"the metadata of {findings.unreadable} ledgers cannot be understood, so they were not checked")
    if not findings.complete:
        complain("the listing of ledgers was cut off: others were not checked")
    return findings


async def _these(client: Client, wanted: Collection[int]) -> AsyncIterator[LedgerMetadata]:
    for ledger_id in wanted:
        yield await client.ledger_metadata(ledger_id)


def _show_lacks(found: LedgerCheck, as_json: bool) -> None:
    rows: list[Record] = [{"ledger_id": found.ledger_id, **lack._asdict()} for lack in found.lacks]
    if as_json:
        print_json({"ledger_id": found.ledger_id, "lacks": rows, "more": found.more})
        return
    for row in rows:
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
        typer.Option(metavar="BOOKIE", help="A bookie that is away and does not come back: need not be waited for."),
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Until what was handed out is done; then look again.")] = False,
    timeout: Annotated[float, typer.Option(metavar="SECONDS", help="How long --wait waits.", min=1)] = 3600,
    pause: Annotated[bool, typer.Option("--pause", help="Hand nothing out any more, and take nothing up.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Undo --pause.")] = False,
    assignments: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="A setting, as of 'repair run'.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Look over all ledgers now, and hand out those that need repair to whoever runs 'tallybook repair run'.

    It prints what it found. Exit code 1 if ledgers have too few good copies; with --wait, if they still have. Those
    that only leave a bookie that is to be emptied have enough. With --pause or --resume it does that alone: paused, the
    repair of the whole cluster goes on to look, and copies nothing.
    """
    if pause and resume:
        raise InvalidArgument("either --pause or --resume")
    if pause or resume:
        since = run(_pause(metadata, pause))
        told = "the repair goes on" if since is None else f"the repair is paused since {_moment(since)}"
        print_record({"paused_since_ms": since} if as_json else {"repair": told}, as_json=as_json)
        return
    settings = load_settings(RepairSettings, overrides=assigned(assignments))
    found = run(_audit(metadata, settings, lost or [], timeout if wait else None))
    print_record(found, as_json=as_json)
    if found["under_replicated"] or found["unreadable"]:
        raise typer.Exit(Exit.FOUND_WRONG)


async def _audit(metadata: str, settings: RepairSettings, lost: list[str], patience: float | None) -> Record:
    from tallybook.repair.one_round import OneRound  # noqa: PLC0415

    async with cluster(metadata) as client:
        clock = client.world.clock
        one_round = OneRound(client, settings, lost)
        found = await one_round.audit()
        for name in lost:
            if name in found.alive:
                complain(f"{name} is there, so it does not count as lost")
            elif await client.world.store.read_cookie(name) is None:
                complain(f"no bookie {name} is known: is it another id? 'cluster status' has them")
        for name in sorted(found.silent):
            complain(f"{name} does not answer: whether it lost data, or knows of damaged copies, is not told here")
        if patience is not None and found.paused_since_ms is not None:
            complain("the repair is paused, so nothing is waited for: 'cluster audit --resume' lets it go on")
        elif patience is not None:
            progress = Progress("tasks of the repair", clock, unit="left")
            async with watched(progress, clock, lambda: (len(one_round.tasks), 0)):
                await one_round.until_done(patience)
            found = await one_round.audit(hand_out=False)
        return _findings(found, one_round.published)


def _findings(found: Audit, published: int) -> Record:
    from tallybook.repair.service import told  # noqa: PLC0415

    return {**told(found), "tasks_handed_out": published}


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

    Bookies that start with security record it by themselves. With --off, a cluster can go back to running without: stop
    all its processes first.
    """
    run(_require_security(metadata, required=not off))
    told = "the cluster no longer requires security" if off else "the cluster requires security"
    print_record({"required": not off} if as_json else {"security": told}, as_json=as_json)


async def _require_security(metadata: str, *, required: bool) -> None:
    async with cluster(metadata) as client:
        world = client.world
        await require_security(world.store, world.clock, world.rng.fork("security"), required=required)


def _moment(milliseconds: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(milliseconds / 1000))
