"""Options that the commands of streams and namespaces share, and the stream store that they open."""

from __future__ import annotations

import inspect
import os
import platform
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Annotated, Any, Final, TypeAlias

import typer

from tallybook.stream import StreamStore
from tallybook.stream.names import DEFAULT_NAMESPACE

from ..cluster_client import cluster

StreamName = Annotated[str, typer.Argument(metavar="NAME", help="Name of the stream, such as orders/eu.")]
Namespace = Annotated[
    str, typer.Option("--namespace", envvar="TALLYBOOK_NAMESPACE", metavar="NAME", help="Namespace of the stream.")
]
Retention = Annotated[
    str | None,
    typer.Option(
        "--retention", metavar="TIME", help="How long a segment is kept after its end: 90s, 15m, 72h, 7d; forever."
    ),
]
RetentionBytes = Annotated[
    str | None,
    typer.Option(
        "--retention-bytes",
        metavar="SIZE",
        help="Payload of sealed segments to keep, such as 100GiB: the oldest segment is deleted while those after it "
        "hold at least as much; unlimited.",
    ),
]
MaxBytes = Annotated[
    str | None,
    typer.Option("--max-bytes", metavar="SIZE", help="Quota: stored payload at which appends are refused; unlimited."),
]
OffloadAfter = Annotated[
    str | None,
    typer.Option(
        "--offload-after",
        metavar="TIME",
        help="Age at which a sealed segment may be archived; default: as the offloader's settings say.",
    ),
]
RollBytes = Annotated[
    str | None,
    typer.Option("--roll-bytes", metavar="SIZE", help="Payload at which a segment ends, such as 256MiB."),
]
RollAfter = Annotated[
    str | None, typer.Option("--roll-after", metavar="TIME", help="Age at which a segment with records ends.")
]
CompressionOption = Annotated[
    str | None, typer.Option("--compression", metavar="NAME", help="Compression of records: none, zstd, lz4.")
]
DedupRecords = Annotated[
    int | None,
    typer.Option(
        "--dedup-records", metavar="N", help="Window of records in which a duplicate id is not appended again; 0: none."
    ),
]
Ensemble = Annotated[int | None, typer.Option("--ensemble", help="Bookies of a segment's ensemble.")]
WriteQuorum = Annotated[int | None, typer.Option("--write-quorum", help="Copies of each record.")]
AckQuorum = Annotated[
    int | None, typer.Option("--ack-quorum", help="Copies that must be durable before an append is confirmed.")
]
Wait = Annotated[
    float | None,
    typer.Option(
        "--wait",
        min=0,
        metavar="SECONDS",
        help="Wait up to this long for another writer to finish.",
        show_default="fence it at once",
    ),
]

DEFAULT: Final = DEFAULT_NAMESPACE

Policy: TypeAlias = dict[str, Any]
"""The values of a stream's policy that were given as options."""

POLICY_OPTIONS: Final = {
    "retention": Retention,
    "retention_bytes": RetentionBytes,
    "max_bytes": MaxBytes,
    "offload_after": OffloadAfter,
    "roll_bytes": RollBytes,
    "roll_after": RollAfter,
    "compression": CompressionOption,
    "dedup_records": DedupRecords,
    "ensemble": Ensemble,
    "write_quorum": WriteQuorum,
    "ack_quorum": AckQuorum,
}

_UNLIMITED: Final = {
    "retention": "forever",
    "retention_bytes": "unlimited",
    "max_bytes": "unlimited",
    "offload_after": "default",
}
"""Words for a value that a policy does not limit (``None``)."""


def changes(**given: str | int | None) -> Policy:
    """The values of a policy that were given."""
    return {
        name: None if value == _UNLIMITED.get(name) else value for name, value in given.items() if value is not None
    }


def with_policy(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of a stream's policy, for its parameter ``policy``, which gets their values."""

    def with_options(**given: Any) -> None:
        policy = changes(**{name: given.pop(name) for name in POLICY_OPTIONS})
        command(**given, policy=policy)

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(command, eval_str=True).parameters.values():
        if parameter.name == "policy":
            options = POLICY_OPTIONS.items()
            parameters += [inspect.Parameter(name, kind, default=None, annotation=form) for name, form in options]
        else:
            parameters.append(parameter)
    with_options.__name__, with_options.__doc__ = command.__name__, command.__doc__
    with_options.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    with_options.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return with_options


def policy_fields(values: Mapping[str, object]) -> dict[str, object]:
    """The values of a policy as they are printed, with the unit in their names."""
    units = {"retention": "retention_s", "offload_after": "offload_after_s", "roll_after": "roll_after_s"}
    return {units.get(name, name): value for name, value in values.items()}


@asynccontextmanager
async def opened(metadata: str, namespace: str) -> AsyncIterator[StreamStore]:
    """The stream store of an existing cluster."""
    name = f"{platform.node()} pid {os.getpid()}"
    async with cluster(metadata) as client, StreamStore(client, namespace=namespace, name=name) as streams:
        yield streams
