"""``tallybook ledger``: create, append, read, tail, info, ls, rm, recover."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Annotated, Any, Final

import typer

from tallybook.client.client import Client
from tallybook.client.reader.handle import LedgerReader
from tallybook.client.recovery.lossy import AcceptedLoss
from tallybook.client.writer.handle import LedgerWriter
from tallybook.core.errors import InvalidArgument, NoSuchLedger, PeerError, Unauthenticated, Unauthorized
from tallybook.core.quantities import counted
from tallybook.metadata.ledger.describe import describe
from tallybook.metadata.ledger.model import DigestType, LedgerMetadata
from tallybook.runtime.clock import RealClock
from tallybook.runtime.tasks import ThreadWorkers

from ..cluster_client import cluster
from ..exits import Exit, reading_only
from ..lines.ledger_append import LedgerFeeder, release_ledger_writer
from ..lines.ledger_read import copy_range, entries_as_json, entries_as_lines, follow
from ..lines.pipes import STDIN, read_lines
from ..options import Json, LedgerId, Metadata, PasswordFile, as_ledger_id, read_password
from ..output import ResultFields, complain, note, print_json, print_record, print_rows
from ..progress import Progress
from ..removal import IfExists, Yes, confirm_removal, delete_each
from ..running import run
from ..standard_output import STDOUT

app = typer.Typer(help="Write, read and manage ledgers.")

_TAIL_ENTRIES: Final = 10
_SIZES: Final = ("ensemble", "write_quorum", "ack_quorum")
_LABELS: Final = {"owned": "has had a writer", "missed": "under-replicated ranges"}
_LIST_COLUMNS: Final = ("ledger_id", "state", "entries", "bytes", *_SIZES, "created_at")


@app.command()
def create(
    metadata: Metadata,
    ensemble: Annotated[int, typer.Option(help="Bookies that hold the ledger.")] = 3,
    write_quorum: Annotated[
        int | None, typer.Option(help="Copies of each entry.", show_default="3, or the ensemble if that is less")
    ] = None,
    ack_quorum: Annotated[
        int | None,
        typer.Option(help="Copies that must be durable before an append is confirmed.", show_default="more than half"),
    ] = None,
    password_file: PasswordFile = None,
    hmac: Annotated[bool, typer.Option("--hmac", help="Sign batches with HMAC-SHA-256; needs a password.")] = False,
    as_json: Json = False,
) -> None:
    """Create a ledger without a writer; 'ledger append' becomes its writer.

    Ids are assigned in blocks, which grow to 64 for a client that creates many ledgers, so they ascend with gaps.
    """
    copies = min(3, ensemble) if write_quorum is None else write_quorum
    acks = copies // 2 + 1 if ack_quorum is None else ack_quorum
    password = read_password(password_file)

    async def work() -> LedgerMetadata:
        async with cluster(metadata) as client:
            return await client.create_unowned_ledger(
                ensemble=ensemble,
                write_quorum=copies,
                ack_quorum=acks,
                password=password,
                digest=DigestType.HMAC_SHA256 if hmac else DigestType.CRC32C,
            )

    created = run(work())
    if as_json:
        print_json(describe(created))
    else:
        print(created.ledger_id)


@app.command()
def append(
    metadata: Metadata,
    ledger: LedgerId,
    close: Annotated[bool, typer.Option("--close", help="Close the ledger when the input ends.")] = False,
    password_file: PasswordFile = None,
    as_json: Json = False,
) -> None:
    """Append standard input to a ledger, one entry per line.

    The ledger must never have had a writer. Newlines are not part of the entries; an unterminated last line counts.
    In any case the command prints how many entries are confirmed, and how to continue if it did not reach the end of
    the input. Without --close the ledger stays open, and 'ledger recover' closes it.
    """
    run(_append(metadata, ledger, read_password(password_file), close, as_json))


async def _append(metadata: str, ledger_id: int, password: bytes, close: bool, as_json: bool) -> None:
    clock, workers = RealClock(), ThreadWorkers(1, "stdin")
    async with cluster(metadata) as client:
        writer = await client.adopt_ledger(ledger_id, password=password)
        feeder = LedgerFeeder(writer, clock, Progress(f"ledger {ledger_id}", clock))
        whole = False
        try:
            await feeder.feed(read_lines(STDIN, workers))
            if close:
                await writer.close()
            whole = True
        finally:
            _report_appended(writer, feeder, as_json)
            if not (whole or as_json):
                complain(_how_to_go_on(writer, feeder))
            if not writer.metadata.closed:
                await release_ledger_writer(client, writer, password, clock)
    await workers.close()


def _report_appended(writer: LedgerWriter, feeder: LedgerFeeder, as_json: bool) -> None:
    entries, size, seconds = feeder.entries, feeder.size_bytes, feeder.seconds
    if as_json:
        print_json(
            {
                "ledger_id": writer.id,
                "entries": entries,
                "bytes": size,
                "seconds": round(seconds, 6),
                "last_entry_id": writer.last_add_confirmed,
                "closed": writer.metadata.closed,
            }
        )
    else:
        print(f"{counted(entries, 'entry', 'entries')}, {counted(size, 'byte')}, {seconds:.3f} seconds", flush=True)


def _how_to_go_on(writer: LedgerWriter, feeder: LedgerFeeder) -> str:
    """A message after an append that did not get to the end of its input: what is durable, how to append the rest."""
    last = writer.last_add_confirmed
    durable = f"entries 0 to {last} are" if last > 0 else "entry 0 is" if last == 0 else "no entry is"
    if writer.metadata.closed:
        return f"ledger {writer.id}: {durable} durable, and it is closed; append the rest to another ledger"
    return (
        f"ledger {writer.id}: {durable} durable{', perhaps later ones, too' * feeder.in_doubt}; 'tallybook ledger "
        f"recover {writer.id}' closes it and prints how many lines it has; append the rest to another ledger"
    )


@app.command()
def read(
    metadata: Metadata,
    ledger: LedgerId,
    first: Annotated[
        int | None, typer.Option(metavar="A", help="First entry.", show_default="the ledger's first")
    ] = None,
    last: Annotated[
        int | None, typer.Option(metavar="B", help="Last entry.", show_default="the last one confirmed")
    ] = None,
    password_file: PasswordFile = None,
    as_json: Json = False,
) -> None:
    """Print entries, one per line, and nothing else.

    A ledger that is still open stays open, and is read up to its last add confirmed.
    """
    password = read_password(password_file)
    form = entries_as_json if as_json else entries_as_lines

    async def work() -> None:
        async with _opened(metadata, ledger, password) as (reader, workers):
            if not reader.closed:
                note(f"ledger {ledger} is open; reading up to entry {reader.last_add_confirmed}")
            await copy_range(reader, first, last, form, STDOUT, workers)

    with reading_only():
        run(work())


@app.command()
def tail(
    metadata: Metadata,
    ledger: LedgerId,
    first: Annotated[
        int | None, typer.Option(metavar="A", help="First entry to print.", show_default="the last ten, then new ones")
    ] = None,
    password_file: PasswordFile = None,
    as_json: Json = False,
) -> None:
    """Print entries as they are confirmed, until the ledger is closed."""
    password = read_password(password_file)
    form = entries_as_json if as_json else entries_as_lines

    async def work() -> None:
        async with _opened(metadata, ledger, password) as (reader, workers):
            start = max(0, reader.last_add_confirmed + 1 - _TAIL_ENTRIES) if first is None else first
            await follow(reader, start, form, STDOUT, workers)

    with reading_only():
        run(work())


@app.command()
def info(metadata: Metadata, ledger: LedgerId, password_file: PasswordFile = None, as_json: Json = False) -> None:
    """Show a ledger: state, replication, last entry, and the bookies that have its entries."""
    password = read_password(password_file)

    async def work() -> ResultFields:
        async with cluster(metadata) as client:
            found = await client.ledger_metadata(ledger)
            lac: int | str | None = await _last_add_confirmed(client, found, password)
            if lac is None and found.key_verifier and not password and not as_json:
                lac = "needs the password"
            return {**describe(found), "last_add_confirmed": lac}

    with reading_only():
        record = run(work())
    print_record(record if as_json else _for_people(record), as_json=as_json)


def _for_people(record: Mapping[str, Any]) -> ResultFields:
    """The fields of a ledger with labels and values for people."""
    shown = dict(record)
    shown["fragments"] = "; ".join(
        f"from entry {each['first_entry_id']}: {', '.join(each['bookies'])}" for each in record["fragments"]
    )
    shown["missed"] = "; ".join(
        f"{each['bookie_id']} from entry {each['first_entry_id']}"
        + ("" if each["last_entry_id"] is None else f" to {each['last_entry_id']}")
        for each in record["missed"]
    )
    return {_LABELS.get(name, name): value for name, value in shown.items()}


@app.command("ls")
def list_(metadata: Metadata, as_json: Json = False) -> None:
    """List all ledgers."""

    async def work() -> list[ResultFields]:
        async with cluster(metadata) as client:
            return [row async for row in _rows(client)]

    with reading_only():
        rows = run(work())
    print_rows(rows, _LIST_COLUMNS, as_json=as_json)


async def _rows(client: Client) -> AsyncIterator[ResultFields]:
    async for ledger_id in client.list_ledgers():
        try:
            yield describe(await client.ledger_metadata(ledger_id))
        except NoSuchLedger:
            # Deleted since the listing named it.
            continue


@app.command()
def rm(
    metadata: Metadata,
    ledgers: Annotated[
        list[int], typer.Argument(metavar="LEDGER...", parser=as_ledger_id, help="Ids of the ledgers to delete.")
    ],
    force: Annotated[
        bool, typer.Option("--force", help="Also delete a ledger of an existing stream, which loses records.")
    ] = False,
    if_exists: IfExists = False,
    yes: Yes = False,
    password_file: PasswordFile = None,
    as_json: Json = False,
) -> None:
    """Delete ledgers. This cannot be undone, and their ids are never used again."""
    password = read_password(password_file)
    confirm_removal("ledger", ledgers, yes)

    async def work() -> None:
        async with cluster(metadata) as client:
            delete = partial(client.delete_ledger, password=password, force=force)
            await delete_each("ledger", ledgers, delete, if_exists=if_exists, as_json=as_json)

    run(work())


@app.command()
def recover(
    metadata: Metadata,
    ledger: LedgerId,
    password_file: PasswordFile = None,
    accept_loss: Annotated[
        bool, typer.Option("--accept-loss", help="If the recovery fails, close the ledger before the first gap.")
    ] = False,
    lost: Annotated[
        list[str] | None,
        typer.Option("--lost", metavar="BOOKIE", help="With --accept-loss: a stopped bookie that never comes back."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Fence a ledger against its writer, find its last entry, and close it.

    Every confirmed entry is kept. A ledger that is already closed stays as it is.

    With --accept-loss, a ledger that cannot be recovered, because too few bookies are available or know which entries
    they have, is closed before the first gap: the first entry above the last add confirmed without a good copy, or
    confirmed entries at the end without one. Confirmed entries may be lost, and good copies behind the gap are given up
    for ever. The command prints what is lost and what may be, and exits with 1 then. It fails and names the bookies if
    bookies that do not answer may have entries that would be given up; the ledger stays open then. Bring these bookies
    back and repeat the command. Name those that never come back with --lost, each with its own: their copies are given
    up.
    """
    if lost and not accept_loss:
        raise InvalidArgument("--lost can only be used with --accept-loss")
    password = read_password(password_file)

    async def work() -> AcceptedLoss:
        async with cluster(metadata) as client:
            if accept_loss:
                return await client.recover_accepting_loss(ledger, password=password, lost=lost or ())
            return AcceptedLoss(await client.recover_ledger(ledger, password=password))

    found = run(work())
    closed = found.metadata
    if as_json:
        print_json({**describe(closed), **({"lost": found.report} if accept_loss else {})})
    else:
        entries = counted(closed.last_entry_id + 1, "entry", "entries")
        print(f"ledger {ledger} is closed: {entries}, {counted(closed.length, 'byte')}")
        for loss in found.report:
            print(f"lost: {loss}")
    if found.lost:
        raise typer.Exit(Exit.FOUND_WRONG)


@asynccontextmanager
async def _opened(metadata: str, ledger_id: int, password: bytes) -> AsyncIterator[tuple[LedgerReader, ThreadWorkers]]:
    """A reader that leaves the ledger as it is, and a thread for its output."""
    workers = ThreadWorkers(1, "stdout")
    async with cluster(metadata) as client:
        yield await client.open_ledger(ledger_id, password=password, recover=False), workers
    await workers.close()


async def _last_add_confirmed(client: Client, metadata: LedgerMetadata, password: bytes) -> int | None:
    """The last entry that readers see; ``None`` if it is not known (no bookies, no password).

    Raises:
        Unauthorized: wrong password.
    """
    if metadata.closed and not password:
        return metadata.last_entry_id
    try:
        return (await client.open_ledger(metadata.ledger_id, password=password, recover=False)).last_add_confirmed
    except Unauthorized:
        if password:
            raise
        return None
    except (PeerError, Unauthenticated) as error:
        if isinstance(error, Unauthenticated):
            complain(error.message)
        return None
