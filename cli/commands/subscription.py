"""``tallybook subscription``: create, ls, reset, rm. A subscription keeps how far a reader of a stream has come."""

from __future__ import annotations

from typing import Annotated

import typer

from tallybook.stream import SubscriptionInfo

from .exits import reading_only
from .options import Json, Metadata
from .output import Record, print_json, print_rows
from .running import run
from .stream_options import DEFAULT, Namespace, StreamName, opened
from .stream_starts import START_FORMS, parse_start

app = typer.Typer(help="Manage the stored positions of readers of streams.")

_Name = Annotated[str, typer.Argument(metavar="SUBSCRIPTION", help="Name of the subscription.")]


def _described(found: SubscriptionInfo) -> Record:
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
    """Make a subscription; one that is there already stays where it is, and whoever reads it is cut off."""
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
    """List the subscriptions of a stream: how far each has come, and who reads it."""

    async def work() -> list[Record]:
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
    to: Annotated[str, typer.Option("--to", metavar="WHERE", help=f"Where it goes on: {START_FORMS}.")],
    namespace: Namespace = DEFAULT,
    as_json: Json = False,
) -> None:
    """Set a subscription back, or forth. Whoever reads it is cut off."""
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
    metadata: Metadata, stream: StreamName, name: _Name, namespace: Namespace = DEFAULT, as_json: Json = False
) -> None:
    """Delete a subscription. Whoever reads it is cut off."""

    async def work() -> None:
        async with opened(metadata, namespace) as streams:
            await streams.unsubscribe(stream, name)

    run(work())
    if as_json:
        print_json({"deleted": name})
    else:
        print(f"deleted subscription {name}")
