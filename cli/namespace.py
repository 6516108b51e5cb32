"""``tallybook namespace``: create, ls, rm. A namespace is what names of streams belong to."""

from __future__ import annotations

from typing import Annotated

import typer

from .exits import reading_only
from .options import Json, Metadata
from .output import Record, print_json, print_rows
from .running import run
from .stream_options import (
    DEFAULT,
    AckQuorum,
    Compression,
    DedupRecords,
    Ensemble,
    OffloadAfter,
    Retention,
    RollAfter,
    RollBytes,
    WriteQuorum,
    changes,
    opened,
)

app = typer.Typer(help="Manage the namespaces that names of streams belong to.")

_Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the namespace.")]


@app.command()
def create(
    metadata: Metadata,
    name: _Name,
    retention: Retention = None,
    offload_after: OffloadAfter = None,
    roll_bytes: RollBytes = None,
    roll_after: RollAfter = None,
    compression: Compression = None,
    dedup_records: DedupRecords = None,
    ensemble: Ensemble = None,
    write_quorum: WriteQuorum = None,
    ack_quorum: AckQuorum = None,
    as_json: Json = False,
) -> None:
    """Make a namespace, or change what its streams are made with.

    The options are what a stream is made with that is not given others; streams that are there stay as they are. What
    is not given has the value that it has everywhere, also where the namespace was there with another one.
    """
    policy = changes(
        retention=retention,
        offload_after=offload_after,
        roll_bytes=roll_bytes,
        roll_after=roll_after,
        compression=compression,
        dedup_records=dedup_records,
        ensemble=ensemble,
        write_quorum=write_quorum,
        ack_quorum=ack_quorum,
    )

    async def work() -> None:
        async with opened(metadata, name) as streams:
            await streams.create_namespace(**policy)

    run(work())
    if as_json:
        print_json({"namespace": name})
    else:
        print(f"made namespace {name}")


@app.command("ls")
def list_(metadata: Metadata, as_json: Json = False) -> None:
    """List all namespaces. The one called default is there always."""

    async def work() -> list[Record]:
        async with opened(metadata, DEFAULT) as streams:
            return [{"namespace": name} async for name in streams.namespaces()]

    with reading_only():
        rows = run(work())
    print_rows(rows, ["namespace"], as_json=as_json)


@app.command()
def rm(metadata: Metadata, name: _Name, as_json: Json = False) -> None:
    """Remove a namespace that has no streams."""

    async def work() -> None:
        async with opened(metadata, name) as streams:
            await streams.delete_namespace()

    run(work())
    if as_json:
        print_json({"deleted": name})
    else:
        print(f"deleted namespace {name}")
