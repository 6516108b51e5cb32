"""Single loads on streams, each a program that prints one line of JSON.

python -m tallybook.bench.streams.stream_load append --metadata URI --record-bytes 1024 --seconds 5 --rounds 5
python -m tallybook.bench.streams.stream_load tail --metadata URI --seconds 10
python -m tallybook.bench.streams.stream_load roll --metadata URI --seconds 10
python -m tallybook.bench.streams.stream_load many --metadata URI --streams 10000 --writers 2000
python -m tallybook.bench.streams.stream_load followers --metadata URI --followers 1000 --records 200
"""

from __future__ import annotations

import asyncio
import os
import struct
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from typing import Annotated, Any, Final, Protocol

import typer

from tallybook.cli.measure.latency import median, percentile
from tallybook.cli.options import Metadata
from tallybook.client.client import Client
from tallybook.client.environment import open_world
from tallybook.client.ports import Connections
from tallybook.core.errors import Busy, check
from tallybook.core.limits import MIB
from tallybook.core.settings import ClientSettings
from tallybook.runtime.rng import SystemRng
from tallybook.runtime.tuning import settle_memory, tune_process
from tallybook.stream import Gap, StreamStore

from ..equipment.proc import memory_bytes
from ..equipment.programs import print_json_line
from ..gates import Figures
from ..loads.spread_appends import spread_appends, steadily

RATE: Final = 1_000.0
"""Records per second of latency measurements."""
TIMED_BYTES: Final = 100
ROLL_BYTES: Final = 512 * 1024
_OPEN_CONCURRENCY: Final = 20
_PIECE: Final = 1_000
_GRACE_SECONDS: Final = 120.0

app = typer.Typer(help=__doc__)


class _Appends(Protocol):
    """Common interface of ledger and stream writers."""

    def append_nowait(self, payload: bytes) -> Any: ...


@app.command()
def append(
    metadata: Metadata,
    record_bytes: Annotated[int, typer.Option(help="Size of a record.")],
    seconds: Annotated[float, typer.Option(help="How long each turn appends.")] = 5.0,
    rounds: Annotated[int, typer.Option(help="Number of rounds.")] = 5,
) -> None:
    """Append at full speed, alternating between a bare ledger and a stream; print both rates and their ratio."""

    async def work() -> Figures:
        payload, of_ledger, of_stream = SystemRng().token(record_bytes), [], []
        async with _streams(metadata) as (client, streams):
            for turn in range(rounds):
                async with await client.create_ledger() as ledger:
                    of_ledger.append(await _rate(ledger, payload, seconds))
                async with await _fresh(streams, f"append-{record_bytes}-{turn}") as writer:
                    of_stream.append(await _rate(writer, payload, seconds))
        name = f"append_{record_bytes}"
        return {
            f"{name}_ledger_per_s": round(median(of_ledger)),
            f"{name}_per_s": round(median(of_stream)),
            f"{name}_ratio": round(median([one / other for one, other in zip(of_stream, of_ledger, strict=True)]), 3),
        }

    _print(work)


@app.command()
def tail(metadata: Metadata, seconds: Annotated[float, typer.Option(help="Measured time.")] = 10.0) -> None:
    """Append at a steady rate; print the latency until a reader with its own client has each record."""

    async def work() -> Figures:
        async with _streams(metadata) as (_, streams), _streams(metadata) as (_, others):
            writer, count = await _fresh(streams, "tail"), round(seconds * RATE)
            late_ms: list[float] = []

            async def follow() -> None:
                async with aclosing(others.reader(writer.name).batches()) as batches:
                    async for batch in batches:
                        now = time.monotonic_ns()
                        records = [] if isinstance(batch, Gap) else batch
                        late_ms.extend((now - struct.unpack_from("<q", one.payload)[0]) / 1e6 for one in records)
                        if len(late_ms) >= count:
                            return

            async def write() -> None:
                await writer.append(_timed(time.monotonic_ns()))
                await steadily(count - 1, RATE, lambda now: writer.append_nowait(_timed(now)))

            await asyncio.wait_for(asyncio.gather(follow(), write()), seconds + _GRACE_SECONDS)
            await writer.close()
        late_ms.sort()
        return {f"tail_{name}_ms": round(percentile(late_ms, share), 2) for name, share in _SHARES.items()}

    _print(work)


@app.command()
def roll(
    metadata: Metadata,
    seconds: Annotated[float, typer.Option(help="Measured time, each.")] = 10.0,
    turns: Annotated[int, typer.Option(help="Number of rounds.")] = 3,
) -> None:
    """Append at a steady rate, alternating between a stream that rolls about twice a second and one that does not."""

    async def work() -> Figures:
        of_quiet, of_rolling = [], []
        async with _streams(metadata) as (_, streams):
            for turn in range(turns):
                rolling = f"roll-often-{turn}"
                of_quiet.append(percentile(await _latencies(streams, f"roll-never-{turn}", seconds), 0.999))
                found = await _latencies(streams, rolling, seconds, roll_bytes=ROLL_BYTES)
                of_rolling.append(percentile(found, 0.999))
                segments = (await streams.info(rolling)).segments
                check(segments >= seconds, f"the stream has rolled {segments} times only")
        return {
            "roll_p999_ms": round(median(of_rolling), 2),
            "no_roll_p999_ms": round(median(of_quiet), 2),
            "roll_p999_growth_ms": round(median([a - b for a, b in zip(of_rolling, of_quiet, strict=True)]), 2),
        }

    _print(work)


@app.command()
def many(
    metadata: Metadata,
    streams: Annotated[int, typer.Option(help="How many streams.")] = 10_000,
    writers: Annotated[int, typer.Option(help="How many of them are written at a time.")] = 2_000,
) -> None:
    """Create streams, list them, open writers and append one record to each."""

    async def work() -> Figures:
        async with _streams(metadata) as (_, store):
            began = time.monotonic()
            for number in range(streams):
                await store.create(f"many/{number}")
            created = time.monotonic()
            found = [name async for name in store.list("many/")]
            listed = time.monotonic()
            check(len(found) == streams, f"{len(found)} streams are listed, not {streams}")
            opened = []
            for start in range(0, writers, _OPEN_CONCURRENCY):
                names = (f"many/{number}" for number in range(start, min(writers, start + _OPEN_CONCURRENCY)))
                opened += await asyncio.gather(*map(store.writer, names))
            ready = time.monotonic()
            await asyncio.gather(*(writer.append(b"x" * TIMED_BYTES) for writer in opened))
            held = memory_bytes(os.getpid())
            for start in range(0, writers, _OPEN_CONCURRENCY):
                await asyncio.gather(*(writer.close() for writer in opened[start : start + _OPEN_CONCURRENCY]))
        return {
            "create_per_s": round(streams / (created - began)),
            "list_seconds": round(listed - created, 3),
            "open_writers_per_s": round(writers / (ready - listed)),
            "writers_mib": round(held / MIB, 1),
        }

    _print(work)


@app.command()
def followers(
    metadata: Metadata,
    count: Annotated[int, typer.Option("--followers", help="How many.")] = 1_000,
    records: Annotated[int, typer.Option(help="How many records they all see.")] = 200,
) -> None:
    """Let many readers follow one stream through one client, and count reads from its bookies."""

    async def work() -> Figures:
        world = await open_world(metadata, ClientSettings())
        counting = _CountingConnections(world.connections)
        async with (
            _streams(metadata) as (_, streams),
            Client(replace(world, connections=counting)) as client,
            StreamStore(client) as others,
        ):
            writer, seen, all_follow = await _fresh(streams, "followers"), [0] * count, asyncio.Event()

            async def follow(number: int) -> None:
                async for _ in others.reader(writer.name):
                    seen[number] += 1
                    if seen[number] == 1 and min(seen) == 1:
                        all_follow.set()

            async def write() -> None:
                await writer.append(b"x" * TIMED_BYTES)
                await writer.commit()
                await all_follow.wait()
                counting.reads = 0
                for _ in range(records - 1):
                    await writer.append(b"x" * TIMED_BYTES)
                await writer.seal()

            await asyncio.wait_for(asyncio.gather(*map(follow, range(count)), write()), _GRACE_SECONDS)
        check(set(seen) == {records}, "a follower has not seen every record")
        # Each append was awaited before the next one, so each is a batch of its own.
        return {"followers": float(count), "reads_per_batch": round(counting.reads / records, 3)}

    _print(work)


class _CountingConnections:
    """Connections that count reads of batches, and LAC waits that return batches."""

    def __init__(self, inner: Connections) -> None:
        self._inner = inner
        self.reads = 0

    async def get(self, bookie_id: str) -> Any:
        """A connection that counts; see the port."""
        return _Counting(await self._inner.get(bookie_id), self)

    async def close(self) -> None:
        """Close every connection."""
        await self._inner.close()


class _Counting:
    """A connection that counts calls that return batches, and delegates to another one."""

    def __init__(self, inner: Any, counts: _CountingConnections) -> None:
        self._inner = inner
        self._counts = counts

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def read_batches(self, *arguments: Any, **more: Any) -> Any:
        """Count and read."""
        self._counts.reads += 1
        return await self._inner.read_batches(*arguments, **more)

    async def wait_lac(self, *arguments: Any, **more: Any) -> Any:
        """Wait, and count the call if it returns batches."""
        answer = await self._inner.wait_lac(*arguments, **more)
        self._counts.reads += bool(answer.batches)
        return answer


_SHARES: Final = {"p50": 0.5, "p99": 0.99, "p999": 0.999}


@asynccontextmanager
async def _streams(metadata: str) -> AsyncIterator[tuple[Client, StreamStore]]:
    async with Client(metadata) as client, StreamStore(client) as streams:
        settle_memory()
        yield client, streams


async def _fresh(streams: StreamStore, name: str, **policy: Any) -> Any:
    """The writer of a new stream."""
    await streams.create(name, **policy)
    return await streams.writer(name)


async def _rate(writer: _Appends, payload: bytes, seconds: float) -> float:
    """Append for some seconds and wait for all confirmations; returns records per second over the whole time.

    Buffers of client and bookies have about a second of data, which would otherwise count as throughput.
    """
    began, records, last = time.monotonic(), 0, None
    while time.monotonic() - began < seconds:
        for _ in range(_PIECE):
            while True:
                try:
                    last = writer.append_nowait(payload)
                    break
                except Busy:
                    await asyncio.sleep(0.001)
        records += _PIECE
        await asyncio.sleep(0)
    if last is not None:
        await last
    return records / (time.monotonic() - began)


async def _latencies(streams: StreamStore, name: str, seconds: float, **policy: Any) -> list[float]:
    """Milliseconds from append to confirmation, sorted, of records of 1 KiB at a steady rate."""
    writer = await _fresh(streams, name, **policy)
    found = await spread_appends([writer], RATE, seconds)
    await writer.close()
    return [latency / 1e6 for latency in sorted(found)]


def _timed(now_ns: int) -> bytes:
    return struct.pack("<q", now_ns).ljust(TIMED_BYTES, b"x")


def _print(work: Callable[[], Any]) -> None:
    tune_process()
    print_json_line(asyncio.run(work()))


if __name__ == "__main__":
    app()
