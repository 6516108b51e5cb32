"""``tallybook cluster diagnose``: finds the bottleneck of a cluster from the metrics of its processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer

from ..cluster_client import cluster, security_directory
from ..exits import Exit, reading_only
from ..options import Json, Metadata
from ..output import print_json
from ..running import run

if TYPE_CHECKING:
    from tallybook.repair.diagnosis.verdict import Diagnosis


_BAD: Final = frozenset({"disk-full", "unknown"})


def diagnose(
    metadata: Metadata,
    seconds: Annotated[float, typer.Option(help="Time between the two samples.", min=0.5, max=600)] = 5.0,
    process: Annotated[
        list[str] | None,
        typer.Option(metavar="HOST:PORT", help="Metrics address of a gateway, an offloader or a repair."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Find the bottleneck of the cluster, and print the metrics that show it.

    Exit code 1: a process does not answer, a disk is full, or no bookie was seen.

    Bookies are found automatically, if this machine can reach their http_listen. Name other processes with --process,
    once for each: without them nothing is known of gateways, of the object store and of the network. The command
    changes nothing.
    """
    with reading_only():
        found = run(_diagnosis(metadata, process or [], seconds))
    if as_json:
        from tallybook.repair.status.report import diagnosis_json  # noqa: PLC0415 (only this needs it)

        print_json(diagnosis_json(found))
    else:
        _show(found)
    if found.silent or found.verdict.value in _BAD:
        raise typer.Exit(Exit.FOUND_WRONG)


async def _diagnosis(metadata: str, others: list[str], seconds: float) -> Diagnosis:
    from tallybook.repair.diagnosis.sampling import diagnose_cluster  # noqa: PLC0415 (no other command has a use for it)

    async with cluster(metadata) as client:
        return await diagnose_cluster(client.world, others, seconds, security=security_directory())


def _show(found: Diagnosis) -> None:
    print(found.sentence)
    for finding in found.findings:
        print()
        print(f"{finding.cause.value}  {finding.process}".rstrip())
        for each in finding.evidence:
            print(f"  {each}")
    if found.silent:
        print()
    for name, why in found.silent.items():
        print(f"silent: {name}: {why}")
    print()
    print(f"{len(found.processes)} processes, watched for {found.seconds:.1f} s: {', '.join(found.processes)}")
