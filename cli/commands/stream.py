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

from tallybook.core.errors import NoSuchLedger, NoSuchStream, PeerError, StorageError, StreamEnded, StreamExists
from tallybook.core.moments import moment_of
from tallybook.runtime.clock import RealClock
from tallybook.runtime.tasks import ThreadWorkers
from tallybook.stream import Position, StreamInfo, StreamStore
from tallybook.stream.names import check_stream_name

from .exits import Exit, reading_only
from .options import Json, Metadata
from .output import Record, complain, note, print_json, print_record, print_rows
from .pipes import STDIN, read_lines, write_all
from .progress import Progress
from .reading import Output
from .running import run
from .standard_output import STDOUT
from .stream_appending import StreamFeeder, Told, let_go, only_line
from .stream_options import (
    DEFAULT,
    AckQuorum,
    Compression,
    DedupRecords,
    Ensemble,
    Namespace,
    OffloadAfter,
    Retention,
    RollAfter,
    RollBytes,
    StreamName,
    Wait,
    WriteQuorum,
    changes,
    opened,
    policy_fields,
)
from .stream_reading import Gaps, copy_records, records_as_json, records_as_lines
from .stream_starts import START_FORMS, parse_condition, parse_start, reached

app = typer.Typer(help="Write, read and manage named streams of records.")

_LIST_COLUMNS: Final = ("name", "first_sequence", "next_sequence", "segments", "owner", "ended", "created_at")


@app.command()
def create(
    metadata: Metadata,
    name: StreamName,
    retention: Retention = None,
    offload_after: OffloadAfter = None,
    roll_bytes: RollBytes = None,
    roll_after: RollAfter = None,
    compression: Compression = None,
    dedup_records: DedupRecords = None,
    ensemble: Ensemble = None,
    write_quorum: WriteQuorum = None,
    ack_quorum: AckQuorum = None,
    namespace: Namespace = DEFAULT,
    as_json: Json = False,
) -> None:
    """Create a stream. What is not given is as the namespace has it."""
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

    async def work() -> StreamInfo:
        async with opened(metadata, namespace) as streams:
            return await streams.create(name, **policy)

    created = run(work())
    if as_json:
        print_json(describe(created))
    else:
        print(f"created stream {name}")


@app.command()
def policy(
    metadata: Metadata,
    name: StreamName,
    retention: Retention = None,
    offload_after: OffloadAfter = None,
    roll_bytes: RollBytes = None,
    roll_after: RollAfter = None,
    compression: Compression = None,
    dedup_records: DedupRecords = None,
    ensemble: Ensemble = None,
    write_quorum: WriteQuorum = None,
    ack_quorum: AckQuorum = None,
    namespace: Namespace = DEFAULT,
    as_json: Json = False,
) -> None:
    """Show how a stream is written and kept, and change what is given.

    Segments that are there stay as they were made.
    """
    given = changes(
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

    async def work() -> StreamInfo:
        async with opened(metadata, namespace) as streams:
            return await (streams.set_policy(name, **given) if given else streams.info(name))

    print_record(policy_fields(run(work()).policy.model_dump(mode="json")), as_json=as_json)


@app.command()
def rename(
    metadata: Metadata,
    name: StreamName,
    new_name: Annotated[str, typer.Argument(metavar="NEW_NAME", help="What it is to be called.")],
    namespace: Namespace = DEFAULT,
    as_json: Json = False,
) -> None:
    """Give a stream another name. Whoever writes or reads it goes on."""

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
        str, typer.Argument(metavar="[PREFIX]", help="What their names begin with.", show_default="all streams")
    ] = "",
    namespace: Namespace = DEFAULT,
    as_json: Json = False,
) -> None:
    """List streams. Of one that is being written, the records are counted up to its last segment."""

    async def work() -> list[Record]:
        async with opened(metadata, namespace) as streams:
            return [row async for row in _rows(streams, prefix)]

    with reading_only():
        rows = run(work())
    print_rows(rows, _LIST_COLUMNS, as_json=as_json)


async def _rows(streams: StreamStore, prefix: str) -> AsyncIterator[Record]:
    async for name in streams.list(prefix):
        try:
            yield describe(await streams.info(name))
        except NoSuchStream:
            # Deleted since the listing named it.
            continue


@app.command()
def info(metadata: Metadata, name: StreamName, namespace: Namespace = DEFAULT, as_json: Json = False) -> None:
    """Show what is known of a stream: its records, who writes it, how it is kept."""

    async def work() -> Record:
        async with opened(metadata, namespace) as streams:
            return await _described(streams, name)

    with reading_only():
        record = run(work())
    print_record(record, as_json=as_json)


async def _described(streams: StreamStore, name: str) -> Record:
    found = describe(await streams.info(name))
    try:
        last = await streams.last(name)
    except (PeerError, StorageError, NoSuchLedger):
        # It is asked of bookies. The rest is known without them.
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
    namespace: Namespace = DEFAULT,
    as_json: Json = False,
) -> None:
    """Delete streams with all that is in them. There is no way back."""

    async def work() -> None:
        async with opened(metadata, namespace) as streams:
            for name in names:
                await streams.delete(name)
                if as_json:
                    print_json({"deleted": name})
                else:
                    print(f"deleted stream {name}", flush=True)

    run(work())


@app.command()
def append(
    metadata: Metadata,
    name: StreamName,
    create_: Annotated[bool, typer.Option("--create", help="Create the stream if there is none.")] = False,
    wait: Wait = None,
    key_separator: Annotated[
        str,
        typer.Option(
            metavar="TEXT",
            help="What stands between key and payload; \\t is a tab. A line without it has no key.",
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
    """Append standard input to a stream, one record a line.

    Whoever writes the stream is cut off, unless --wait says otherwise. Newlines do not belong to the records; an
    unterminated last line counts. However the command ends, it prints the position of the last record that is
    confirmed, and before a failure it says how many are.
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
            told = partial(_print_positions, as_json, printers) if positions else None
            progress = Progress(f"stream {name}", clock, unit="records")
            feeder = StreamFeeder(writer, clock, progress, key_separator=separator, told=told)
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
                    _report_appended(name, feeder, told, as_json=as_json, whole=whole)
                finally:
                    if not whole:
                        await let_go(writer)
        await workers.close()
        await printers.close()

    run(work())


async def _create_missing(streams: StreamStore, name: str) -> None:
    if await streams.exists(name):
        return
    try:
        await streams.create(name)
    except StreamExists:
        note(f"somebody else has just created stream {name}")


async def _print_positions(as_json: bool, workers: ThreadWorkers, positions: Sequence[Position]) -> None:
    form = '{{"position": "{}"}}\n' if as_json else "{}\n"
    await write_all(STDOUT, [form.format(position).encode() for position in positions], workers)


def _report_appended(name: str, feeder: StreamFeeder, told: Told | None, *, as_json: bool, whole: bool) -> None:
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
    if told is None and last is not None:
        print(last, flush=True)
    say = note if whole else complain
    say(f"stream {name}: {records} records, {size} bytes confirmed in {feeder.seconds:.3f} seconds")


_Count = Annotated[
    int | None, typer.Option("--count", min=1, metavar="N", help="Print so many records at most.", show_default="all")
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
            help="Where to end: like --from; the first record that is not printed any more.",
            show_default="the last one confirmed",
        ),
    ] = None,
    count: _Count = None,
    namespace: Namespace = DEFAULT,
    as_json: Json = False,
) -> None:
    """Print records, one a line, and nothing else.

    Where records are missing, that is told on standard error, reading goes on behind them, and the exit code is 1.
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
    """Print records as they are confirmed, until the stream is ended for ever, or until Ctrl-C.

    Where records are missing, that is told on standard error, reading goes on behind them, and the exit code is 1.
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
    gaps = Gaps(name, as_json=as_json)

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
    before: Annotated[
        str, typer.Option("--before", metavar="WHERE", help=f"The first record to be kept: {START_FORMS}.")
    ],
    namespace: Namespace = DEFAULT,
    as_json: Json = False,
) -> None:
    """Give up all records before a certain one. There is no way back."""
    wanted = parse_start(before)

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
    metadata: Metadata, name: StreamName, wait: Wait = None, namespace: Namespace = DEFAULT, as_json: Json = False
) -> None:
    """End a stream for ever: nothing can be appended any more, and readers come to an end.

    Whoever writes it is cut off, unless --wait says otherwise. A stream that has ended stays as it is.
    """

    async def work() -> StreamInfo:
        async with opened(metadata, namespace) as streams:
            with suppress(StreamEnded):  # which is what was wanted
                async with await streams.writer(name, wait_s=wait) as writer:
                    await writer.end_stream()
            return await streams.info(name)

    sealed = run(work())
    if as_json:
        print_json(describe(sealed))
    else:
        print(f"stream {name} has ended: {sealed.next_sequence} records")


@app.command()
def mend(
    metadata: Metadata,
    name: StreamName,
    accept_loss: Annotated[
        bool, typer.Option("--accept-loss", help="Give up what is lost at the end of the stream. There is no way back.")
    ] = False,
    wait: Wait = None,
    namespace: Namespace = DEFAULT,
    as_json: Json = False,
) -> None:
    """Settle what the last writer of a stream has left, so that it can be written again.

    Fails where the end of the stream is lost: bring back the bookies that have it, or accept the loss. Then readers are
    told of it, and the numbers of records go on further on. Whoever writes the stream is cut off, unless --wait says
    otherwise.
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
        print(f"stream {name} goes on with record {mended.next_sequence}")


@app.command()
def keep(metadata: Metadata, as_json: Json = False) -> None:
    """Look after all streams of the cluster once: delete what is too old or was truncated, finish what was left half
    done.

    Exit code 5 if some streams could not be looked after; the same command does it later.
    """

    async def work() -> int:
        async with opened(metadata, DEFAULT) as streams:
            return await streams.keep()

    failed = run(work())
    print_record({"streams_failed": failed}, as_json=as_json)
    if failed:
        raise typer.Exit(Exit.PEER)


def describe(found: StreamInfo) -> dict[str, object]:
    """What is known of a stream, to be printed."""
    created = moment_of(found.created_at_ms)
    return {
        "name": found.name,
        "namespace": found.namespace,
        "stream_id": found.stream_id,
        "created_at": created.isoformat(timespec="milliseconds"),
        "first_sequence": found.first_sequence,
        "next_sequence": found.next_sequence,
        "segments": found.segments,
        "owner": found.owner,
        "ended": found.ended,
        "policy": policy_fields(found.policy.model_dump(mode="json")),
    }
