"""The stream act of the demo: two producers, one at a time, a reader that tails the stream, and a count by Spark.

    producer-1 ----.  SIGSTOP ........................ SIGCONT: refused
                    '--> stream --> a reader that tails it --> SHA-256
    producer-2 ------'         '--> Spark, in micro-batches

It is not known which of the last flights of the first producer are in the stream. So the second one starts a little
earlier and sends flights again with the same dedup ids, so that none is in the stream twice.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any, Final

from tallybook.client.background import client_tasks
from tallybook.client.client import Client
from tallybook.core.errors import BookieUnavailable, RequestTimeout, TallybookError
from tallybook.stream import Gap, StreamStore

from ..local.launcher import LocalCluster, how_it_ended, signal_process
from . import producer as demo_producer
from . import spark_stream as demo_spark_stream
from .check import Tally, tally_of
from .source import flights
from .view import DemoOutput

STREAM: Final = "flights/nyc"
_ROLL_BYTES: Final = 16 << 20
_SECONDS: Final = 12.0
"""About how long the producers take, for any number of flights."""
_STOP_AT: Final = 0.4
_WAKE_AT: Final = 0.6
"""Parts of the flights that are acknowledged when the first producer is stopped, and when it is continued."""
_FIRST: Final = 500
"""Flights that are appended before the producers start."""
_AGAIN: Final = 2_000
"""Flights that the second producer sends again, at most."""
_TIMEOUT_SECONDS: Final = 180.0
_LAST_WORDS: Final = 1_500


class StreamAct:
    """Runs one stream from its first record to its end.

    Args:
        count: number of flights.
        with_spark: whether Spark counts.
    """

    def __init__(self, cluster: LocalCluster, file: Path, count: int, view: DemoOutput, *, with_spark: bool) -> None:
        self._cluster = cluster
        self._file = file
        self._count = count
        self._view = view
        self._with_spark = with_spark
        self._acked = 0
        self._counted = 0
        self._batches = 0
        self._carriers: dict[str, int] = {}
        self._spark_ready = asyncio.Event()
        self._tasks = client_tasks("demo")
        self.result: dict[str, object] = {}

    async def run(self) -> bool:
        """Run the whole act; returns whether all comparisons succeeded.

        Raises:
            RequestTimeout: it takes too long.
            TallybookError: a producer or Spark failed; the message has the end of its standard error.
        """
        try:
            async with (
                asyncio.timeout(_TIMEOUT_SECONDS),
                Client(self._cluster.metadata) as client,
                StreamStore(client, name="demo") as streams,
            ):
                await self._begin(streams)
                return await self._follow(streams)
        except TimeoutError:
            raise RequestTimeout(f"the stream had not come to its end after {_TIMEOUT_SECONDS:.0f} s") from None
        finally:
            await self._tasks.close()

    async def _begin(self, streams: StreamStore) -> None:
        """Create the stream, with some flights for Spark to warm up on."""
        await streams.create(STREAM, roll_bytes=_ROLL_BYTES, dedup_records=10 * _AGAIN)
        async with await streams.writer(STREAM) as writer:
            await writer.append_many(demo_producer.with_ids(next(flights(self._file, _FIRST)), 0))
        self._view.step(f"stream {STREAM} was created, with the first {_FIRST:,} flights in it; a reader follows it")
        if self._with_spark:
            self._view.waiting("Spark starts")
        else:
            self._spark_ready.set()

    async def _follow(self, streams: StreamStore) -> bool:
        spawn = self._tasks.spawn
        tailing = spawn(self._tail_to_the_end(streams), name="tail")
        others = spawn(self._produce(), name="produce"), spawn(self._count_with_spark(), name="spark")
        # The first failure is raised.
        await asyncio.gather(tailing, *others)
        self._view.end_of_rate()
        return self._compare(tailing.result())

    async def _tail_to_the_end(self, streams: StreamStore) -> Tally:
        found = await tally_of(_tail(streams), [self._count])
        self._view.step(f"the reader reached the end of the stream: {found.lines:,} flights")
        if self._with_spark:
            self._view.waiting("Spark counts the rest")
        return found

    # -- the producers -----------------------------------------------------------------------------------------------

    async def _produce(self) -> None:
        """Run both producers."""
        await self._spark_ready.wait()
        async with self._producer("producer-1", _FIRST) as first, aclosing(_said(first)) as events:
            async for said in events:
                self._acknowledged(said, "producer-1")
                if said["said"] == "owner":
                    self._view.step("producer-1 owns the stream and appends flights")
                if self._acked >= self._count * _STOP_AT:
                    break
            signal_process(first, signal.SIGSTOP)
            self._view.event(f"SIGSTOP to producer-1, with {self._acked:,} flights acknowledged")
            refused = self._tasks.spawn(self._refused(events), name="refusal")
            try:
                await self._take_over(first)
                await refused
            finally:
                refused.cancel()

    async def _take_over(self, first: asyncio.subprocess.Process) -> None:
        """Run the second producer, and continue the first one meanwhile."""
        skip, awake = max(_FIRST, self._acked - _AGAIN), False
        self.result["sent_again"] = self._acked - skip
        async with self._producer("producer-2", skip) as second, aclosing(_said(second)) as events:
            async for said in events:
                self._acknowledged(said, "producer-2")
                if said["said"] == "owner":
                    self._view.step(
                        f"producer-2 took the stream over in {said['ms']} ms, found {said['records']:,} flights in it, "
                        f"and sends again from number {skip:,} on"
                    )
                if not awake and self._acked >= self._count * _WAKE_AT:
                    awake = True
                    signal_process(first, signal.SIGCONT)
                if said["said"] == "ended":
                    self._view.end_of_rate()
                    self._view.step(f"producer-2 has sealed the stream, which lies in {said['segments']} ledgers")
            if await second.wait():
                raise BookieUnavailable(f"producer-2 {how_it_ended(second.returncode or 0)}")

    async def _refused(self, events: AsyncIterator[dict[str, Any]]) -> None:
        """Wait until the first producer, once continued, reports that it was fenced."""
        self.result["fenced"] = False
        async for said in events:
            if said["said"] == "fenced":
                self.result["fenced"] = True
                self._view.step(f"producer-1 was continued, and fenced: {said['error']}")
        if not self.result["fenced"]:
            self._view.problem("producer-1 was continued, and not fenced")

    def _acknowledged(self, said: dict[str, Any], who: str) -> None:
        self._acked = max(self._acked, said.get("flights", 0))
        seen = f", Spark has counted {self._counted:,}" if self._with_spark else ""
        self._view.rate(self._acked, self._count, None, f"by {who}{seen}")

    @asynccontextmanager
    async def _producer(self, name: str, skip: int) -> AsyncIterator[asyncio.subprocess.Process]:
        pipe = self._cluster.life_pipe
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-P", "-m", demo_producer.MODULE, "--metadata", self._cluster.metadata,
            "--stream", STREAM, "--name", name, "--flights", str(self._file), "--count", str(self._count),
            "--skip", str(skip), "--rate", str(self._count / _SECONDS), "--parent-pipe", str(pipe),
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
            pass_fds=[pipe], start_new_session=True,
        )  # fmt: skip
        try:
            yield process
        finally:
            if process.returncode is None:
                signal_process(process, signal.SIGKILL)
            await process.wait()

    # -- Spark -------------------------------------------------------------------------------------------------------

    async def _count_with_spark(self) -> None:
        """Run the Spark query until it has counted all flights."""
        if not self._with_spark:
            return
        with tempfile.TemporaryDirectory(dir=self._cluster.directory) as scratch:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-P", "-m", demo_spark_stream.MODULE, "--metadata", self._cluster.metadata,
                "--stream", STREAM, "--count", str(self._count), "--scratch", scratch,
                stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
                cwd=scratch,
            )  # fmt: skip
            words = self._tasks.spawn(_last_words(process), name="last words")
            try:
                async with aclosing(_said(process)) as events:
                    async for said in events:
                        self._counted_by_spark(said)
                if await process.wait():
                    raise TallybookError(f"Spark failed: {await words}")
            finally:
                words.cancel()
                if process.returncode is None:
                    process.kill()
                    await process.wait()

    def _counted_by_spark(self, said: dict[str, Any]) -> None:
        self._batches += 1
        self._counted, self._carriers = said["flights"], said["carriers"]
        if not self._spark_ready.is_set():
            self._view.step(f"Spark has counted {self._counted:,} flights by carrier, and waits for more")
            self._spark_ready.set()

    # -- the end -----------------------------------------------------------------------------------------------------

    def _compare(self, found: Tally) -> bool:
        source, carriers = Tally([self._count]), Counter[str]()
        for lines in flights(self._file, self._count):
            source.add(lines)
            carriers.update(json.loads(line)["carrier"] for line in lines)
        same = found.digests == source.digests and found.lines == self._count
        self.result |= {"flights": found.lines, "same": same}
        if same:
            self._view.step(f"{self.result['sent_again']:,} flights were sent twice, and none is there twice:")
            self._view.detail(f"{found.lines:>9,} flights  sha-256 {found.digests[-1][:32]}")
        else:
            self._view.problem(f"the stream has {found.lines:,} flights, and not those that were sent")
        return same and bool(self.result["fenced"]) and self._counted_well(carriers)

    def _counted_well(self, carriers: Counter[str]) -> bool:
        if not self._with_spark:
            return True
        well = self._carriers == carriers
        self.result |= {"spark": well, "batches": self._batches}
        self._show_carriers(carriers)
        if not well:
            self._view.problem("Spark's counts differ from the source")
        return well

    def _show_carriers(self, carriers: Counter[str]) -> None:
        rows = [
            (carrier, f"{self._carriers.get(carrier, 0):,}", f"{count:,}") for carrier, count in carriers.most_common()
        ]
        title = f"Flights by carrier, in {self._batches} micro-batches"
        self._view.table(title, ("carrier", "by Spark, from the stream", "in the source"), rows)


async def _tail(streams: StreamStore) -> AsyncIterator[Sequence[bytes]]:
    """Payloads of the stream as they are confirmed, until it ends."""
    async with aclosing(streams.reader(STREAM).batches()) as batches:
        async for batch in batches:
            if not isinstance(batch, Gap):
                yield [record.payload for record in batch]


async def _said(process: asyncio.subprocess.Process) -> AsyncGenerator[dict[str, Any], None]:
    """The JSON lines of a process, up to its last complete line."""
    if process.stdout is not None:
        async for line in process.stdout:
            if line.endswith(b"\n"):
                yield json.loads(line)


async def _last_words(process: asyncio.subprocess.Process) -> str:
    """The end of a process's standard error; what comes before is dropped."""
    words = b""
    while process.stderr is not None and (more := await process.stderr.read(1 << 16)):
        words = (words + more)[-_LAST_WORDS:]
    return words.decode(errors="replace")
