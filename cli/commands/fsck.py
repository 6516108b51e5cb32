"""``tallybook fsck``: look over all of a cluster's storage, and mend what can be mended without a decision."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, nullcontext
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tallybook.core.counted import counted

from .cluster import archive_keys, cluster
from .exits import Exit, reading_only
from .options import Json, Metadata
from .output import Record, print_json
from .progress import Progress, watched
from .running import run

if TYPE_CHECKING:
    from tallybook.client.client import Client
    from tallybook.repair.fsck import Bucket, Finding, Fsck


def fsck(
    metadata: Metadata,
    repair: Annotated[
        bool, typer.Option("--repair", help="Mend what can be mended without a decision; else nothing is changed.")
    ] = False,
    bucket: Annotated[bool, typer.Option(help="Look into the archive's bucket, too, if there is one.")] = True,
    as_json: Json = False,
) -> None:
    """Check metadata, bookies and bucket against each other, and mend what can be mended.

    Exit code 1 if anything is bad or lost. Each finding says what is wrong, where, how bad it is (note: it goes away
    by itself; bad: less safe, or out of reach; lost: no good copy is known) and what mends it. With --repair, ledgers
    that lack copies are handed to whoever runs 'tallybook repair run', and dead tasks deleted; the rest is for you to
    decide. It can be interrupted at any time. With --json there is a line for each finding, and one with the totals
    at the end.
    """
    with nullcontext() if repair else reading_only():
        totals = run(_fsck(metadata, repair, bucket, as_json))
    if as_json:
        print_json(totals)
    else:
        done = f"; something was done about {totals['mended']:,} of them" if repair else ""
        told = f"{counted(totals['findings'], 'finding')}, {counted(totals['notes'], 'note')}{done}"
        print(f"{counted(totals['looked_at'], 'thing')} looked at: {told}")
    if totals["findings"]:
        raise typer.Exit(Exit.FOUND_WRONG)


async def _fsck(metadata: str, repair: bool, with_bucket: bool, as_json: bool) -> Any:
    # What it stands on takes long to load.
    from tallybook.repair.fsck import Fsck  # noqa: PLC0415
    from tallybook.repair.fsck_records import RECORD_KINDS  # noqa: PLC0415
    from tallybook.repair.tasks import TaskBoard  # noqa: PLC0415
    from tallybook.stream.record_kinds import STREAM_KINDS, STREAM_OWNERS  # noqa: PLC0415

    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(cluster(metadata))
        world = client.world
        opened = await _bucket(stack, client) if with_bucket else None
        board = TaskBoard(world.store, world.clock, world.rng.fork("fsck"), lease_s=10) if repair else None
        check = Fsck(world, (*RECORD_KINDS, *STREAM_KINDS), STREAM_OWNERS, opened, board)
        progress = Progress("looking", world.clock, unit="things")
        async with watched(progress, world.clock, lambda: (check.totals.steps, 0)):
            await _show_all(check, as_json, repair)
        totals = check.totals
    return {
        "looked_at": totals.steps,
        "findings": totals.findings,
        "notes": totals.notes,
        "mended": totals.mended,
        "bucket": opened is not None,
    }


async def _bucket(stack: AsyncExitStack, client: Client) -> Bucket | None:
    """The archive of the cluster, if it has one."""
    from tallybook.archive.location import read_location  # noqa: PLC0415

    if await read_location(client.world.store) is None:
        return None
    from tallybook.archive.reader import ArchiveReader  # noqa: PLC0415
    from tallybook.offload.process import opened  # noqa: PLC0415
    from tallybook.repair.fsck import Bucket  # noqa: PLC0415

    archive = await stack.enter_async_context(opened(client, None, archive_keys=archive_keys()))
    return Bucket(archive.store, ArchiveReader(archive.store, archive.workers, archive.tasks))


async def _show_all(check: Fsck, as_json: bool, repair: bool) -> None:
    found: AsyncIterator[Finding] = check.run()
    async for finding in found:
        if as_json:
            print_json(_told(finding, repair))
        else:
            doing = _doing(finding, repair)
            print(f"{finding.how_bad:4}  {finding.where}: {finding.what}\n      {finding.remedy}{doing}", flush=True)


def _doing(finding: Finding, repair: bool) -> str:
    """What becomes of a finding, for people."""
    from tallybook.repair.fsck_finding import Mend  # noqa: PLC0415 (as above)

    if finding.fix is None:
        return ""
    handed = isinstance(finding.fix, Mend)
    if repair:
        return " (handed to it)" if handed else " (done)"
    return " (--repair hands it over)" if handed else " (--repair does it)"


def _told(finding: Finding, repair: bool) -> Record:
    return {
        "what": finding.what,
        "where": finding.where,
        "how_bad": finding.how_bad,
        "remedy": finding.remedy,
        "automatic": finding.fix is not None,
        "done": repair and finding.fix is not None,
    }
