"""``tallybook fsck``: checks all storage of a cluster, and repairs what needs no decision."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, nullcontext
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tallybook.core.quantities import counted

from ..cluster_client import archive_keys, cluster
from ..exits import Exit, reading_only
from ..options import Json, Metadata
from ..output import ResultFields, print_json
from ..progress import Progress, show_progress
from ..running import run

if TYPE_CHECKING:
    from tallybook.client.client import Client
    from tallybook.repair.fsck.fsck import Fsck, FsckFinding, OpenArchive


def fsck(
    metadata: Metadata,
    repair: Annotated[
        bool, typer.Option("--repair", help="Repair what needs no decision; without it nothing is changed.")
    ] = False,
    bucket: Annotated[bool, typer.Option(help="Also check the archive's bucket, if there is one.")] = True,
    as_json: Json = False,
) -> None:
    """Check metadata, bookies and bucket against each other, and repair what can be repaired.

    Exit code 1 if anything is bad or lost. Each finding says what is wrong, where, how bad it is (note: it goes away
    by itself; bad: less safe, or out of reach; lost: no good copy is known) and what to do. With --repair, tasks for
    ledgers that lack copies are created for the processes of 'tallybook repair run', and undecodable tasks are deleted;
    you decide about the rest. The command can be interrupted at any time. With --json the result comes at the end,
    with the findings in the list "details".
    """
    with nullcontext() if repair else reading_only():
        totals = run(_fsck(metadata, repair=repair, with_bucket=bucket, as_json=as_json))
    if as_json:
        print_json(totals)
    else:
        done = f"; {totals['mended']:,} of them fixed or given to the repair" if repair else ""
        text = f"{counted(totals['findings'], 'finding')}, {counted(totals['notes'], 'note')}{done}"
        print(f"{counted(totals['looked_at'], 'item')} checked: {text}")
    if totals["findings"]:
        raise typer.Exit(Exit.FOUND_WRONG)


async def _fsck(metadata: str, *, repair: bool, with_bucket: bool, as_json: bool) -> Any:
    # Imported here because these take long to load.
    from tallybook.repair.fsck.fsck import Fsck  # noqa: PLC0415
    from tallybook.repair.fsck.records import RECORD_KINDS  # noqa: PLC0415
    from tallybook.repair.tasks import TaskBoard  # noqa: PLC0415
    from tallybook.stream.record_kinds import STREAM_KINDS, STREAM_OWNERS  # noqa: PLC0415

    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(cluster(metadata))
        world = client.world
        opened = await _bucket(stack, client) if with_bucket else None
        board = TaskBoard(world.store, world.clock, world.rng.fork("fsck"), lease_s=10) if repair else None
        check = Fsck(world, (*RECORD_KINDS, *STREAM_KINDS), STREAM_OWNERS, opened, board)
        progress = Progress("checking", world.clock, unit="items")
        async with show_progress(progress, world.clock, lambda: (check.totals.steps, 0)):
            details = await _show_all(check, as_json=as_json, repair=repair)
        totals = check.totals
    return {
        "looked_at": totals.steps,
        "findings": totals.findings,
        "notes": totals.notes,
        "mended": totals.mended,
        "bucket": opened is not None,
        "details": details,
    }


async def _bucket(stack: AsyncExitStack, client: Client) -> OpenArchive | None:
    """The archive of the cluster, if it has one."""
    from tallybook.archive.url_record import read_location  # noqa: PLC0415

    if await read_location(client.world.store) is None:
        return None
    from tallybook.archive.reader import ArchiveReader  # noqa: PLC0415
    from tallybook.offload.open_archive import open_archive  # noqa: PLC0415
    from tallybook.repair.fsck.fsck import OpenArchive  # noqa: PLC0415

    archive = await stack.enter_async_context(open_archive(client, None, archive_keys=archive_keys()))
    return OpenArchive(archive.store, ArchiveReader(archive.store, archive.workers, archive.tasks))


async def _show_all(check: Fsck, *, as_json: bool, repair: bool) -> list[ResultFields]:
    """Print the findings; with ``as_json`` return them."""
    details: list[ResultFields] = []
    found: AsyncIterator[FsckFinding] = check.run()
    async for finding in found:
        if as_json:
            details.append(_as_record(finding, repair))
        else:
            doing = _doing(finding, repair)
            print(f"{finding.how_bad:4}  {finding.where}: {finding.what}\n      {finding.remedy}{doing}", flush=True)
    return details


def _doing(finding: FsckFinding, repair: bool) -> str:
    """The end of a finding's text: the repair that was done, or would be done with --repair."""
    from tallybook.repair.fsck.finding import PublishRepairTask  # noqa: PLC0415 (as above)

    if finding.fix is None:
        return ""
    is_task = isinstance(finding.fix, PublishRepairTask)
    if repair:
        return " (task created)" if is_task else " (done)"
    return " (--repair creates the task)" if is_task else " (--repair does it)"


def _as_record(finding: FsckFinding, repair: bool) -> ResultFields:
    return {
        "what": finding.what,
        "where": finding.where,
        "how_bad": finding.how_bad,
        "remedy": finding.remedy,
        "automatic": finding.fix is not None,
        "done": repair and finding.fix is not None,
    }
