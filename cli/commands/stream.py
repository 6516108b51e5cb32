"""``tallybook stream``: create, policy, rename, ls, info, rm, append, read, tail, truncate, seal, mend, keep.

zcat access.log.gz | tallybook stream append web --create
tallybook stream tail web --from latest | grep ' 500 '
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Annotated, Final

import typer

from tallybook.core.calendar import utc_datetime
from tallybook.core.errors import NoSuchLedger, NoSuchStream, PeerError, StorageError, StreamEnded, StreamExists
from tallybook.core.quantities import counted
from tallybook.runtime.clock import RealClock
from tallybook.runtime.tasks import ThreadWorkers
from tallybook.stream import Position, StreamInfo, StreamStore
from tallybook.stream.names import check_stream_name

from ..exits import Exit, reading_only
from ..lines.ledger_read import Output
from ..lines.pipes import STDIN, read_lines, write_all
from ..lines.stream_append import OnConfirmed, StreamFeeder, only_line, release_stream_writer
from ..lines.stream_bounds import START_FORMS, parse_condition, parse_start, reached
from ..lines.stream_options import DEFAULT, Namespace, Policy, StreamName, Wait, opened, policy_fields, with_policy
from ..lines.stream_read import GapReporter, copy_records, records_as_json, records_as_lines
from ..options import Json, Metadata
from ..output import ResultFields, complain, note, print_json, print_record, print_rows
from ..progress import Progress
from ..removal import IfExists, Yes, confirm, confirm_removal, delete_each
from ..running import run
from ..standard_output import STDOUT

app = typer.Typer(help="Write, read and manage named streams of records.")

_LIST_COLUMNS: Final = ("name", "first_sequence", "next_sequence", "segments", "owner", "sealed", "created_at")


@app.command()
@with_policy
def create(
    metadata: Metadata,
    name: StreamName,
    policy: Policy,
    namespace: Namespace = DEFAULT,
    as_json: Json = False,
) -> None:
    """Create a stream. Options that are not given get the defaults of the namespace."""

    async def work() -> StreamInfo:
        async with opened(metadata, namespace) as streams:
            return await streams.create(name, **policy)

    created = run(work())
    if as_json:
        print_json(describe(created))
    else:
        print(f"created stream {name}")


@app.command()
@with_policy
def policy(
    metadata: Metadata,
    name: StreamName,
    policy: Policy,
    namespace: Namespace = DEFAULT,
    as_json: Json = False,
) -> None:
    """Show the policy of a stream, and change the given values.

    Existing segments stay as they are.
    """

    async def work() -> StreamInfo:
        async with opened(metadata, namespace) as streams:
            return await (streams.set_policy(name, **policy) if policy else streams.info(name))

    print_record(policy_fields(run(work()).policy.model_dump(mode="json")), as_json=as_json)


@app.command()
def rename(
    metadata: Metadata,
    name: StreamName,
    new_name: Annotated[str, typer.Argument(metavar="NEW_NAME", help="New name of the stream.")],
    namespace: Namespace = DEFAULT,
    as_json: Json = False,
) -> None:
    """Rename a stream. Its writer and its readers continue."""

    async def work() -> StreamInfo:
        async with opened(metadata, namespace) as streams:
            return await streams.rename(name, new_name)

    renamed = run(work())
    if as_json:
        print_json(describe(renamed))
    else:
        print(f"stream {name} is called {new_name}")


@app.command("ls")
def list_(
    metadata: Metadata,
    prefix: Annotated[
        str, typer.Argument(metavar="[PREFIX]", help="Prefix of the names.", show_default="all streams")
    ] = "",
    namespace: Namespace = DEFAULT,
    as_json: Json = False,
) -> None:
    """List streams. For a stream that is being written, records are counted up to its last segment."""

    async def work() -> list[ResultFields]:
        async with opened(metadata, namespace) as streams:
            return [row async for row in _rows(streams, prefix)]

    with reading_only():
        rows = run(work())
    print_rows(rows, _LIST_COLUMNS, as_json=as_json)


async def _rows(streams: StreamStore, prefix: str) -> AsyncIterator[ResultFields]:
    async for name in streams.list(prefix):
        try:
            yield describe(await streams.info(name))
        except NoSuchStream:
            # Deleted since the listing named it.
            continue


@app.command()
def info(metadata: Metadata, name: StreamName, namespace: Namespace = DEFAULT, as_json: Json = False) -> None:
    """Show a stream: its records, its writer and its policy."""

    async def work() -> dict[str, object]:
        async with opened(metadata, namespace) as streams:
            return await _described(streams, name)

    with reading_only():
        record = run(work())
    if not as_json:
        del record["ended"]
    print_record(record, as_json=as_json)


async def _described(streams: StreamStore, name: str) -> dict[str, object]:
    found = describe(await streams.info(name)) | {"stored_bytes": await streams.stored_bytes(name)}
    try:
        last = await streams.last(name)
    except (PeerError, StorageError, NoSuchLedger):
        # Only bookies know the last position; the other fields come from the metadata.
        last = None
    found["last_position"] = None
    if last is not None:
        position, sequence = last
        found["next_sequence"], found["last_position"] = sequence + 1, str(position)
    return found


@app.command()
def rm(
    metadata: Metadata,
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Names of the streams to delete.")],
    if_exists: IfExists = False,
    yes: Yes = False,
    namespace: Namespace = DEFAULT,
    as_json: Json = False,
) -> None:
    """Delete streams with all of their records. This cannot be undone."""
    confirm_removal("stream", names, yes)

    async def work() -> None:
        async with opened(metadata, namespace) as streams:
            await delete_each("stream", names, streams.delete, if_exists=if_exists, as_json=as_json)

    run(work())


@app.command()
def append(
    metadata: Metadata,
    name: StreamName,
    create_: Annotated[bool, typer.Option("--create", help="Create the stream if it does not exist.")] = False,
    wait: Wait = None,
    key_separator: Annotated[
        str,
        typer.Option(
            metavar="TEXT",
            help="Separator between key and payload; \\t is a tab. A line without it has no key.",
            show_default="no keys",
        ),
    ] = "",
    if_position: Annotated[
        str | None,
        typer.Option(
            metavar="POSITION",
            help="Append one line, and only if the last record has this position; 'start': if there is no record.",
        ),
    ] = None,
    positions: Annotated[
        bool, typer.Option("--positions", help="Print the position of each record when it is confirmed.")
    ] = False,
    namespace: Namespace = DEFAULT,
    as_json: Json = False,
) -> None:
    """Append standard input to a stream, one record per line.

    Another writer of the stream is fenced, unless --wait is given. Newlines are not part of the records; an
    unterminated last line counts. In any case the command prints the position of the last confirmed record. If it did
    not reach the end of the input, it also prints how many records are confirmed, and how to continue.
    """
    check_stream_name(name)
    expected = None if if_position is None else (parse_condition(if_position),)
    separator = os.fsencode(key_separator.replace("\\t", "\t"))

    async def work() -> None:
        clock, workers, printers = RealClock(), ThreadWorkers(1, "stdin"), ThreadWorkers(1, "stdout")
        source = read_lines(STDIN, workers)
        line = None if expected is None else await only_line(source)
        async with opened(metadata, namespace) as streams:
            if create_:
                await _create_missing(streams, name)
            writer = await streams.writer(name, wait_s=wait)
            on_confirmed = partial(_print_positions, as_json, printers) if positions else None
            progress = Progress(f"stream {name}", clock, unit="records")
            feeder = StreamFeeder(writer, clock, progress, key_separator=separator, on_confirmed=on_confirmed)
            whole = False
            try:
                if line is None or expected is None:
                    await feeder.feed(source)
                else:
                    await feeder.append_one(line, expected[0])
                await writer.close()
                whole = True
            finally:
                try:
                    _report_appended(name, feeder, on_confirmed, as_json=as_json, whole=whole)
                finally:
                    if not whole:
                        await release_stream_writer(writer)
        await workers.close()
        await printers.close()

    run(work())


async def _create_missing(streams: StreamStore, name: str) -> None:
    if await streams.exists(name):
        return
    try:
        await streams.create(name)
    except StreamExists:
        note(f"stream {name} was just created by another process")


async def _print_positions(as_json: bool, workers: ThreadWorkers, positions: Sequence[Position]) -> None:
    form = '{{"position": "{}"}}\n' if as_json else "{}\n"
    await write_all(STDOUT, [form.format(position).encode() for position in positions], workers)


def _report_appended(
    name: str, feeder: StreamFeeder, on_confirmed: OnConfirmed | None, *, as_json: bool, whole: bool
) -> None:
    records, size, last = feeder.entries, feeder.size_bytes, feeder.last_position
    if as_json:
        print_json(
            {
                "stream": name,
                "records": records,
                "bytes": size,
                "seconds": round(feeder.seconds, 6),
                "last_position": None if last is None else str(last),
            }
        )
        return
    if on_confirmed is None and last is not None:
        print(last, flush=True)
    confirmed = f"{counted(records, 'record')}, {counted(size, 'byte')} confirmed"
    text = f"stream {name}: {confirmed} in {feeder.seconds:.3f} seconds"
    if whole:
        note(text)
        return
    go_on = f"continue with line {records + 1} of the input"
    if feeder.in_doubt:
        go_on = f"later lines may have been appended, too: see 'tallybook stream info {name}', or {go_on}"
    complain(f"{text}; {go_on}")


_Count = Annotated[
    int | None, typer.Option("--count", min=1, metavar="N", help="Print at most N records.", show_default="all")
]


@app.command()
def read(
    metadata: Metadata,
    name: StreamName,
    start: Annotated[str, typer.Option("--from", metavar="WHERE", help=f"Where to begin: {START_FORMS}.")] = "earliest",
    to: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="WHERE",
            help="Where to end, in the forms of --from: the first record that is not printed.",
            show_default="the last one confirmed",
        ),
    ] = None,
    count: _Count = None,
    namespace: Namespace = DEFAULT,
    as_json: Json = False,
) -> None:
    """Print records, one per line, and nothing else.

    If records are missing, this is reported on standard error, reading continues after them, and the exit code is 1.
    """
    _copy(metadata, namespace, name, start, to, count, follow=False, as_json=as_json)


@app.command()
def tail(
    metadata: Metadata,
    name: StreamName,
    start: Annotated[str, typer.Option("--from", metavar="WHERE", help=f"Where to begin: {START_FORMS}.")] = "latest",
    count: _Count = None,
    namespace: Namespace = DEFAULT,
    as_json: Json = False,
) -> None:
    """Print records as they are confirmed, until the stream is sealed, or until Ctrl-C.

    If records are missing, this is reported on standard error, reading continues after them, and the exit code is 1.
    """
    _copy(metadata, namespace, name, start, None, count, follow=True, as_json=as_json)


def _copy(
    metadata: str,
    namespace: str,
    name: str,
    start: str,
    to: str | None,
    count: int | None,
    *,
    follow: bool,
    as_json: bool,
) -> None:
    """Print the records of a stream.

    Raises:
        typer.Exit: some are missing.
    """
    begin, end = parse_start(start), None if to is None else reached(parse_start(to))
    gaps = GapReporter(name, as_json=as_json)

    async def work() -> None:
        workers = ThreadWorkers(1, "stdout")
        output = Output(records_as_json if as_json else records_as_lines, STDOUT, workers)
        async with opened(metadata, namespace) as streams:
            reader = streams.reader(name, start=begin, follow=follow, gaps="yield")
            try:
                await copy_records(reader.batches(), output, gaps, RealClock(), count=count, end=end)
            except asyncio.CancelledError:
                if not follow:
                    raise
                note("stopped")
        await workers.close()

    with reading_only():
        run(work())
    if gaps.count:
        raise typer.Exit(Exit.FOUND_WRONG)


@app.command()
def truncate(
    metadata: Metadata,
    name: StreamName,
    before: Annotated[str, typer.Option("--before", metavar="WHERE", help=f"The first record to keep: {START_FORMS}.")],
    yes: Yes = False,
    namespace: Namespace = DEFAULT,
    as_json: Json = False,
) -> None:
    """Delete all records before a certain one. This cannot be undone."""
    wanted = parse_start(before)
    confirm(f"Delete the records of stream {name} before {before}", yes)

    async def work() -> StreamInfo:
        async with opened(metadata, namespace) as streams:
            return await streams.truncate(name, before=wanted)

    truncated = run(work())
    if as_json:
        print_json(describe(truncated))
    else:
        print(f"stream {name} begins with record {truncated.first_sequence}")


@app.command()
def seal(
    metadata: Metadata,
    name: StreamName,
    wait: Wait = None,
    yes: Yes = False,
    namespace: Namespace = DEFAULT,
    as_json: Json = False,
) -> None:
    """Seal a stream for ever: nothing can be appended any more, and readers reach its end. This cannot be undone.

    Its writer is fenced, unless --wait is given. A sealed stream stays as it is.
    """
    confirm(f"Seal stream {name}", yes)

    async def work() -> StreamInfo:
        async with opened(metadata, namespace) as streams:
            with suppress(StreamEnded):  # which is what was wanted
                async with await streams.writer(name, wait_s=wait) as writer:
                    await writer.seal()
            return await streams.info(name)

    sealed = run(work())
    if as_json:
        print_json(describe(sealed))
    else:
        print(f"stream {name} is sealed: {counted(sealed.next_sequence, 'record')}")


@app.command()
def mend(
    metadata: Metadata,
    name: StreamName,
    accept_loss: Annotated[
        bool,
        typer.Option("--accept-loss", help="Give up lost records at the end of the stream. This cannot be undone."),
    ] = False,
    wait: Wait = None,
    namespace: Namespace = DEFAULT,
    as_json: Json = False,
) -> None:
    """Recover what the last writer of a stream has left, so that it can be written again.

    Fails if the end of the stream is lost: bring back the bookies that have it, or accept the loss. Then readers get a
    gap there, and sequence numbers continue after it. The stream's writer is fenced, unless --wait is given.
    """

    async def work() -> StreamInfo:
        async with opened(metadata, namespace) as streams:
            async with await streams.writer(name, wait_s=wait, accept_loss=accept_loss):
                pass
            return await streams.info(name)

    mended = run(work())
    if as_json:
        print_json(describe(mended))
    else:
        print(f"stream {name} continues with record {mended.next_sequence}")


@app.command()
def keep(metadata: Metadata, as_json: Json = False) -> None:
    """Run retention once for all streams of the cluster: delete expired and truncated segments, and finish interrupted
    operations.

    Exit code 5 if it failed for some streams; run the same command again later.
    """

    async def work() -> int:
        async with opened(metadata, DEFAULT) as streams:
            return await streams.keep()

    failed = run(work())
    print_record({"streams_failed": failed}, as_json=as_json)
    if failed:
        raise typer.Exit(Exit.PEER)


def describe(found: StreamInfo) -> dict[str, object]:
    """The fields of a stream that are printed."""
    created = utc_datetime(found.created_at_ms)
    return {
        "name": found.name,
        "namespace": found.namespace,
        "stream_id": found.stream_id,
        "created_at": created.isoformat(timespec="milliseconds"),
        "first_sequence": found.first_sequence,
        "next_sequence": found.next_sequence,
        "segments": found.segments,
        "owner": found.owner,
        "sealed": found.sealed,
        # The name before; to be removed in the next release.
        "ended": found.sealed,
        "policy": policy_fields(found.policy.model_dump(mode="json")),
    }
