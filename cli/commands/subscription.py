"""``tallybook subscription``: create, ls, reset, rm."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from tallybook.stream import SubscriptionInfo

from ..exits import reading_only
from ..lines.stream_bounds import START_FORMS, parse_start
from ..lines.stream_options import DEFAULT, Namespace, StreamName, opened
from ..options import Json, Metadata
from ..output import ResultFields, print_json, print_rows
from ..removal import IfExists, Yes, confirm_removal, delete_each
from ..running import run

app = typer.Typer(help="Manage the stored positions of readers of streams.")

_Name = Annotated[str, typer.Argument(metavar="SUBSCRIPTION", help="Name of the subscription.")]


def _described(found: SubscriptionInfo) -> ResultFields:
    return {
        "subscription": found.name,
        "cursor": None if found.cursor is None else str(found.cursor),
        "reader": found.reader,
    }


@app.command()
def create(
    metadata: Metadata,
    stream: StreamName,
    name: _Name,
    start: Annotated[
        str, typer.Option("--from", metavar="WHERE", help=f"Where it begins: {START_FORMS}.")
    ] = "earliest",
    namespace: Namespace = DEFAULT,
    as_json: Json = False,
) -> None:
    """Create a subscription. An existing one keeps its position, and its reader is fenced."""
    wanted = parse_start(start)

    async def work() -> str:
        async with (
            opened(metadata, namespace) as streams,
            await streams.subscribe(stream, name, start=wanted) as subscription,
        ):
            return str(subscription.cursor)

    cursor = run(work())
    if as_json:
        print_json({"subscription": name, "cursor": cursor})
    else:
        print(f"subscription {name} is {cursor}")


@app.command("ls")
def list_(metadata: Metadata, stream: StreamName, namespace: Namespace = DEFAULT, as_json: Json = False) -> None:
    """List the subscriptions of a stream, each with its position and its reader."""

    async def work() -> list[ResultFields]:
        async with opened(metadata, namespace) as streams:
            return [_described(found) async for found in streams.subscriptions(stream)]

    with reading_only():
        rows = run(work())
    print_rows(rows, ["subscription", "cursor", "reader"], as_json=as_json)


@app.command()
def reset(
    metadata: Metadata,
    stream: StreamName,
    name: _Name,
    to: Annotated[str, typer.Option("--to", metavar="WHERE", help=f"Where it continues: {START_FORMS}.")],
    namespace: Namespace = DEFAULT,
    as_json: Json = False,
) -> None:
    """Set the position of a subscription. Its reader is fenced."""
    wanted = parse_start(to)

    async def work() -> SubscriptionInfo:
        async with opened(metadata, namespace) as streams:
            return await streams.reset_subscription(stream, name, wanted)

    found = run(work())
    if as_json:
        print_json(_described(found))
    else:
        print(f"subscription {name} is {found.cursor}")


@app.command()
def rm(
    metadata: Metadata,
    stream: StreamName,
    name: _Name,
    if_exists: IfExists = False,
    yes: Yes = False,
    namespace: Namespace = DEFAULT,
    as_json: Json = False,
) -> None:
    """Delete a subscription. Its reader is fenced."""
    confirm_removal("subscription", [name], yes)

    async def work() -> None:
        async with opened(metadata, namespace) as streams:
            delete = partial(streams.unsubscribe, stream)
            await delete_each("subscription", [name], delete, if_exists=if_exists, as_json=as_json)

    run(work())
