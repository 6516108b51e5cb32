"""Options that the commands of streams and namespaces share, and the store that they work on."""

from __future__ import annotations

import os
import platform
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Annotated, Any, Final

import typer

from tallybook.stream import StreamStore
from tallybook.stream.names import DEFAULT_NAMESPACE

from .cluster import cluster

StreamName = Annotated[str, typer.Argument(metavar="NAME", help="Name of the stream, such as orders/eu.")]
Namespace = Annotated[
    str, typer.Option("--namespace", envvar="TALLYBOOK_NAMESPACE", metavar="NAME", help="Where the name belongs to.")
]
Retention = Annotated[
    str | None,
    typer.Option(
        "--retention", metavar="TIME", help="How long a segment is kept once it has ended: 90s, 15m, 72h, 7d; forever."
    ),
]
OffloadAfter = Annotated[
    str | None,
    typer.Option(
        "--offload-after",
        metavar="TIME",
        help="Age at which a segment that has ended may go to the archive; default: when the offloader likes.",
    ),
]
RollBytes = Annotated[
    str | None,
    typer.Option("--roll-bytes", metavar="SIZE", help="Payload at which a segment ends, such as 256MiB."),
]
RollAfter = Annotated[
    str | None, typer.Option("--roll-after", metavar="TIME", help="Age at which a segment ends that has any record.")
]
Compression = Annotated[
    str | None, typer.Option("--compression", metavar="NAME", help="How records are compressed: none, zstd, lz4.")
]
DedupRecords = Annotated[
    int | None,
    typer.Option("--dedup-records", metavar="N", help="An id is not taken twice within so many records; 0: it may be."),
]
Ensemble = Annotated[int | None, typer.Option("--ensemble", help="Bookies that a segment is spread over.")]
WriteQuorum = Annotated[int | None, typer.Option("--write-quorum", help="Copies of each record.")]
AckQuorum = Annotated[
    int | None, typer.Option("--ack-quorum", help="Copies that must be durable before an append counts.")
]
Wait = Annotated[
    float | None,
    typer.Option(
        "--wait",
        min=0,
        metavar="SECONDS",
        help="Wait so long until nobody writes the stream.",
        show_default="whoever writes it is cut off",
    ),
]

DEFAULT: Final = DEFAULT_NAMESPACE

_UNLIMITED: Final = {"retention": "forever", "offload_after": "default"}
"""Words for what a policy says by not saying it."""


def changes(**given: str | int | None) -> dict[str, Any]:
    """Those values of a policy that were given."""
    return {
        name: None if value == _UNLIMITED.get(name) else value for name, value in given.items() if value is not None
    }


def policy_fields(values: Mapping[str, object]) -> dict[str, object]:
    """The values of a policy as they are printed: their names say the unit."""
    units = {"retention": "retention_s", "offload_after": "offload_after_s", "roll_after": "roll_after_s"}
    return {units.get(name, name): value for name, value in values.items()}


@asynccontextmanager
async def opened(metadata: str, namespace: str) -> AsyncIterator[StreamStore]:
    """The streams of a cluster that exists."""
    name = f"{platform.node()} pid {os.getpid()}"
    async with cluster(metadata) as client, StreamStore(client, namespace=namespace, name=name) as streams:
        yield streams
