"""``tallybook bench``: measures a cluster, or the disk of a journal."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tallybook.core.errors import InvalidArgument

from ..cluster_client import cluster
from ..exits import exit_code, sentence
from ..measure.adds import AddPlan, AddResult, measure_adds
from ..measure.journal import measure_journal
from ..measure.reads import FLUSH_SECONDS, ReadPass, ReadPlan, measure_reads
from ..options import Json, Metadata
from ..output import complain, note, print_json, print_record, print_rows
from ..running import run

app = typer.Typer(help="Measure a cluster, or the disk below a journal.")

EntryBytes = Annotated[int, typer.Option(help="Size of an entry.")]


@app.command()
def write(
    metadata: Metadata,
    entry_bytes: EntryBytes = 1024,
    ledgers: Annotated[int, typer.Option(help="Ledgers to write to, round-robin.")] = 4,
    window: Annotated[int, typer.Option(help="Maximum unconfirmed entries of all ledgers together.")] = 5000,
    rate: Annotated[
        float,
        typer.Option(help="Entries per second at a fixed rate: an open loop.", show_default="closed loop"),
    ] = 0.0,
    seconds: Annotated[float, typer.Option(help="How long to measure.")] = 10.0,
    warm_up_seconds: Annotated[float, typer.Option(help="Warm-up, not counted.")] = 5.0,
    ensemble: Annotated[int, typer.Option(help="Bookies that hold a ledger.")] = 3,
    write_quorum: Annotated[int, typer.Option(help="Copies of each entry.")] = 3,
    ack_quorum: Annotated[int, typer.Option(help="Copies that must be durable before an append is confirmed.")] = 2,
    append_many: Annotated[
        bool,
        typer.Option("--append-many", help="Use append_many, with a ledger's share of the window in each call."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Append to new ledgers and print rate and latency; the ledgers are deleted afterwards.

    Latency is the time from the append to its confirmation; with --rate, from the time for which the append was
    scheduled.
    """
    quorums = (ensemble, write_quorum, ack_quorum)
    plan = AddPlan(entry_bytes, ledgers, window, seconds, rate, warm_up_seconds, *quorums, append_many)

    async def work() -> AddResult:
        async with cluster(metadata) as client:
            return await measure_adds(client, plan)

    result = run(work())
    print_record(result.as_record(), as_json=as_json)
    if result.failure is not None:
        complain(sentence(result.failure))
        raise typer.Exit(exit_code(result.failure))


@app.command()
def read(
    metadata: Metadata,
    entry_bytes: EntryBytes = 1024,
    entries: Annotated[int, typer.Option(help="Entries to write first, and then to read.")] = 400_000,
    flush_seconds: Annotated[
        float, typer.Option(help="Pause after the ledger is closed, for the bookies to flush it.")
    ] = FLUSH_SECONDS,
    warm_seconds: Annotated[
        float, typer.Option(help="Duration of the second pass, which repeats from the beginning; 0: once.")
    ] = 0.0,
    as_json: Json = False,
) -> None:
    """Write a ledger and close it, then read it in two passes, cold and warm, each in order and at random.

    The first pass finds the bookies' caches cold, the second one warm. The figures at the top level of the JSON are of
    the second pass.
    """
    plan = ReadPlan(entry_bytes, entries, flush_seconds, warm_seconds)

    async def work() -> tuple[ReadPass, ReadPass]:
        async with cluster(metadata) as client:
            return await measure_reads(client, plan)

    cold, warm = run(work())
    if as_json:
        print_json({**warm.as_record(), "cold": cold.as_record(), "warm": warm.as_record()})
    else:
        rows = [{"caches": "cold", **cold.as_record()}, {"caches": "warm", **warm.as_record()}]
        print_rows(rows, ["caches", *cold.as_record()], as_json=False)


@app.command()
def journal(
    directory: Annotated[
        Path,
        typer.Option(
            "--dir", metavar="DIR", help="Directory for about 400 MB of test data; created if it does not exist."
        ),
    ],
    write_bytes: Annotated[
        str, typer.Option(metavar="BYTES[,BYTES...]", help="Sizes of a write, in steps of 4 KiB up to 1 MiB.")
    ] = "4096,65536,262144,1048576",
    seconds: Annotated[float, typer.Option(help="How long to measure each size.")] = 4.0,
    as_json: Json = False,
) -> None:
    """Compare the journal with plain writes to the same disk, alternating within one run."""
    try:
        sizes = [int(size) for size in write_bytes.split(",")]
    except ValueError as error:
        raise InvalidArgument(f"--write-bytes takes numbers with commas between them, not {write_bytes!r}") from error
    note("each size begins with one pass over new files, which is not measured")
    rows = [result.as_record() for result in run(measure_journal(directory.absolute(), sizes, seconds))]
    print_rows(rows, list(rows[0]), as_json=as_json)
