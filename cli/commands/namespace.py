"""``tallybook namespace``: create, info, ls, rm."""

from __future__ import annotations

from typing import Annotated

import typer

from tallybook.stream import NamespaceInfo

from ..exits import reading_only
from ..lines.stream_options import DEFAULT, Policy, opened, policy_fields, with_policy
from ..options import Json, Metadata
from ..output import ResultFields, print_json, print_record, print_rows
from ..removal import IfExists, Yes, confirm_removal, delete_each
from ..running import run

app = typer.Typer(help="Manage the namespaces that names of streams belong to.")

_Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the namespace.")]
TotalBytes = Annotated[
    str | None,
    typer.Option(
        "--total-bytes",
        metavar="SIZE",
        help="Quota: payload stored by all streams of the namespace together, at which appends are refused.",
        show_default="no quota",
    ),
]


@app.command()
@with_policy
def create(
    metadata: Metadata,
    name: _Name,
    policy: Policy,
    total_bytes: TotalBytes = None,
    as_json: Json = False,
) -> None:
    """Create a namespace, or change the defaults of an existing one.

    The options are the defaults for new streams of the namespace; existing streams stay as they are. An option that is
    not given gets its general default, also if the namespace existed with another value.
    """

    async def work() -> None:
        async with opened(metadata, name) as streams:
            await streams.create_namespace(total_bytes=total_bytes, **policy)

    run(work())
    if as_json:
        print_json({"namespace": name})
    else:
        print(f"created namespace {name}")


@app.command()
def info(metadata: Metadata, name: _Name, as_json: Json = False) -> None:
    """Show a namespace: its quota, how much of it is used, and the defaults of new streams.

    The stored bytes are those of sealed segments, as of the last pass of the stream janitor.
    """

    async def work() -> NamespaceInfo:
        async with opened(metadata, name) as streams:
            return await streams.namespace_info()

    with reading_only():
        found = run(work())
    record: ResultFields = {
        "namespace": found.name,
        "total_bytes": found.total_bytes,
        "stored_bytes": found.stored_bytes,
        "policy": policy_fields(found.policy.model_dump(mode="json")),
    }
    print_record(record, as_json=as_json)


@app.command("ls")
def list_(metadata: Metadata, as_json: Json = False) -> None:
    """List all namespaces. The namespace 'default' always exists."""

    async def work() -> list[ResultFields]:
        async with opened(metadata, DEFAULT) as streams:
            return [{"namespace": name} async for name in streams.namespaces()]

    with reading_only():
        rows = run(work())
    print_rows(rows, ["namespace"], as_json=as_json)


@app.command()
def rm(metadata: Metadata, name: _Name, if_exists: IfExists = False, yes: Yes = False, as_json: Json = False) -> None:
    """Delete a namespace without streams. The namespace 'default' only loses the defaults that were given to it."""
    confirm_removal("namespace", [name], yes)

    async def work() -> None:
        async with opened(metadata, name) as streams:
            await delete_each(
                "namespace", [name], lambda _: streams.delete_namespace(), if_exists=if_exists, as_json=as_json
            )

    run(work())
