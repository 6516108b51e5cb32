"""``tallybook cluster diagnose``: what a cluster waits for, by the numbers of its processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer

from .cluster import cluster, security_directory
from .exits import Exit, reading_only
from .options import Json, Metadata
from .output import print_json
from .running import run

if TYPE_CHECKING:
    from tallybook.repair.diagnosis.verdict import Diagnosis


_BAD: Final = frozenset({"disk-full", "unknown"})


def diagnose(
    metadata: Metadata,
    seconds: Annotated[float, typer.Option(help="How long it is watched.", min=0.5, max=600)] = 5.0,
    process: Annotated[
        list[str] | None,
        typer.Option(metavar="HOST:PORT", help="Where a gateway, an offloader or a repair serves its metrics."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Say what the cluster waits for, and by which numbers.

    Exit code 1: a process is silent, a disk is full, or no bookie was seen.

    Bookies are found by themselves, where their http_listen is an address that this machine reaches. Other processes
    are looked at where --process names them, once for each: without them nothing is said of gateways, of the object
    store and of the network. It changes nothing.
    """
    with reading_only():
        found = run(_diagnosis(metadata, process or [], seconds))
    if as_json:
        from tallybook.repair.told import diagnosis_told  # noqa: PLC0415 (only this needs it)

        print_json(diagnosis_told(found))
    else:
        _show(found)
    if found.silent or found.verdict.value in _BAD:
        raise typer.Exit(Exit.FOUND_WRONG)


async def _diagnosis(metadata: str, others: list[str], seconds: float) -> Diagnosis:
    from tallybook.repair.diagnosis.look import look  # noqa: PLC0415 (no other command has a use for it)

    async with cluster(metadata) as client:
        return await look(client.world, others, seconds, security=security_directory())


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
