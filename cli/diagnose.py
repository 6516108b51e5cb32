"""``tallybook cluster diagnose``: what a cluster waits for, by the numbers of its processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from .cluster import cluster, security_directory
from .exits import Exit, reading_only
from .options import Json, Metadata
from .output import Record, print_json
from .running import run

if TYPE_CHECKING:
    from tallybook.repair.diagnosis.causes import Finding
    from tallybook.repair.diagnosis.verdict import Diagnosis


def diagnose(
    metadata: Metadata,
    seconds: Annotated[float, typer.Option(help="How long it is watched.", min=0.5, max=600)] = 5.0,
    process: Annotated[
        list[str] | None,
        typer.Option(metavar="HOST:PORT", help="Where a gateway, an offloader or a repair serves its metrics."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Say what the cluster waits for, and by which numbers. Exit code 1 if a process is silent, or a disk is full.

    Bookies are found by themselves, where their http_listen is an address that this machine reaches. Other processes
    are looked at where --process names them, once for each: without them nothing is said of gateways, of the object
    store and of the network. It changes nothing.
    """
    with reading_only():
        found = run(_diagnosis(metadata, process or [], seconds))
    if as_json:
        print_json(_told(found))
    else:
        _show(found)
    if found.silent or found.verdict.value == "disk-full":
        raise typer.Exit(Exit.FOUND_WRONG)


async def _diagnosis(metadata: str, others: list[str], seconds: float) -> Diagnosis:
    from tallybook.repair.diagnosis.look import look  # noqa: PLC0415 (no other command has a use for it)

    async with cluster(metadata) as client:
        return await look(client.world, others, seconds, security=security_directory())


def _told(found: Diagnosis) -> Record:
    return {
        "verdict": found.verdict.value,
        "healthy": found.verdict.is_healthy and not found.silent,
        "sentence": found.sentence,
        "seconds": round(found.seconds, 3),
        "processes": list(found.processes),
        "silent": dict(found.silent),
        "findings": [_told_finding(finding) for finding in found.findings],
    }


def _told_finding(finding: Finding) -> Record:
    evidence = [
        {"what": each.what, "value": each.value, "unit": each.unit, "above": each.above} for each in finding.evidence
    ]
    return {
        "cause": finding.cause.value,
        "process": finding.process,
        "score": round(finding.score, 3),
        "evidence": evidence,
    }


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
