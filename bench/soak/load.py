"""The clients of a soak test, programs that print their figures as lines of JSON.

python -m tallybook.bench.soak.load run --metadata URI --book FILE
python -m tallybook.bench.soak.load verify --metadata URI --book FILE

``run`` writes, tails, catches up and deletes until SIGTERM; the book then has the entries that must exist.
"""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Annotated, Final

import typer

from tallybook.cli.options import Metadata
from tallybook.client.background import client_tasks
from tallybook.client.client import Client
from tallybook.client.reader.handle import LedgerReader
from tallybook.client.writer.handle import LedgerWriter
from tallybook.core.errors import NoSuchLedger, TallybookError, is_defect
from tallybook.core.limits import MIB
from tallybook.core.settings import ClientSettings
from tallybook.runtime.http.server import HttpServer
from tallybook.runtime.metrics.registry import Metrics
from tallybook.runtime.rng import SeededRng
from tallybook.runtime.tuning import settle_memory, tune_process

from ..equipment.programs import print_json_line
from ..gates import Figures
from ..loads.payloads import payload_of
from .book import Book

WRITERS: Final = 4
TAILING: Final = 2
CATCHING_UP: Final = 2
MAX_LEDGERS: Final = 60
LEDGER_BURSTS: Final = 40
BURST: Final = 50
PAYLOAD_BYTES: Final = 1_000
BURST_SECONDS: Final = 0.25
VERIFY_CONCURRENCY: Final = 4
_REST_SECONDS: Final = 0.5
_AFTER_ERROR_SECONDS: Final = 1.0
_TAIL_SECONDS: Final = 20.0
_END_SECONDS: Final = 120.0

app = typer.Typer(help=__doc__)

BookFile = Annotated[Path, typer.Option("--book", help="What must be there.")]


@app.command()
def run(metadata: Metadata, book: BookFile) -> None:
    """Put the load on until SIGTERM."""

    async def work() -> dict[str, int]:
        async with Client(metadata, _settings()) as client:
            load = _Load(client)
            await load.run()
        book.write_text(load.book.encode())
        return dict(load.counts)

    tune_process()
    print_json_line(asyncio.run(work()))


@app.command()
def verify(metadata: Metadata, book: BookFile) -> None:
    """Read all confirmed entries, and print the missing ones."""

    async def work() -> Figures:
        wanted = iter(Book.decode(book.read_text()).confirmed.items())
        counts: Counter[str] = Counter(entries=0, lost=0, ledgers=0)
        async with Client(metadata) as client:

            async def some() -> None:
                for ledger_id, confirmed in wanted:
                    counts["ledgers"] += 1
                    counts["entries"] += confirmed
                    counts["lost"] += confirmed - await _good_entries(client, ledger_id, confirmed)

            await asyncio.gather(*(some() for _ in range(VERIFY_CONCURRENCY)))
        return dict(counts)

    tune_process()
    print_json_line(asyncio.run(work()))


async def _good_entries(client: Client, ledger_id: int, confirmed: int) -> int:
    """Number of the first entries of a ledger that exist and are correct."""
    good = 0
    try:
        reader = await client.open_ledger(ledger_id)
        async for entry in reader.read(0, min(confirmed - 1, reader.last_add_confirmed)):
            good += entry.payload == payload_of(ledger_id, entry.entry_id, PAYLOAD_BYTES)
    except TallybookError as error:
        print_json_line({"ledger": ledger_id, "entries": confirmed, "error": repr(error)})
    return good


def _settings() -> ClientSettings:
    """Settings for bookies that fail continuously, and for caches that are full after the warm-up."""
    return ClientSettings(
        max_pending_bytes=16 * MIB,
        away_timeout_ms=1_000,
        quarantine_ms=5_000,
        archive_index_bytes=4 * MIB,
        archive_cache_bytes=4 * MIB,
    )


class _Load:
    """The actors. Errors caused by unavailable bookies are counted and retried."""

    def __init__(self, client: Client) -> None:
        self.book = Book()
        self.counts: Counter[str] = Counter()
        self._client = client
        self._rng = SeededRng(1)
        self._over = asyncio.Event()
        self._strange: set[int] = set()
        """Ledgers of other clients, as of the last listing."""

    async def run(self) -> None:
        """Run until SIGTERM, and until all work in progress has ended."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self._over.set)
        tasks = client_tasks("soak")
        http = HttpServer(Metrics(), lambda: None)
        await http.start("127.0.0.1:0", tasks)
        settle_memory()
        print_json_line({"http": http.address})
        actors = [*[self._write] * WRITERS, *[self._follow] * TAILING, *[self._catch_up] * CATCHING_UP, self._delete]
        async with asyncio.timeout(None) as timeout:
            living = [tasks.spawn(self._live(actor), name=actor.__name__) for actor in actors]
            await self._over.wait()
            timeout.reschedule(asyncio.get_running_loop().time() + _END_SECONDS)
            await asyncio.gather(*living)
        await http.close()
        await tasks.close()

    async def _live(self, actor: Callable[[], Awaitable[None]]) -> None:
        while not self._over.is_set():
            try:
                await actor()
            except TallybookError as error:
                if is_defect(error):
                    raise
                self.counts[type(error).__name__] += 1
                await self._pause(_AFTER_ERROR_SECONDS)

    async def _pause(self, seconds: float) -> None:
        """Wait for some seconds, or until the end of the run."""
        try:
            async with asyncio.timeout(seconds):
                await self._over.wait()
        except TimeoutError:
            return

    async def _write(self) -> None:
        """Write one ledger in bursts."""
        writer = await self._client.create_ledger()
        self.book.begin(writer.id)
        try:
            for burst in range(LEDGER_BURSTS):
                await self._append(writer, burst * BURST)
                await self._pause(BURST_SECONDS)
                if self._over.is_set():
                    break
            await writer.close()
            self.counts["closed ledgers"] += 1
        finally:
            if not writer.ended:
                # A reader recovers the ledger.
                writer.abandon()
            self.book.end(writer.id)

    async def _append(self, writer: LedgerWriter, first: int) -> None:
        numbers = range(first, first + BURST)
        pending = [writer.append_nowait(payload_of(writer.id, each, PAYLOAD_BYTES)) for each in numbers]
        for number, append in zip(numbers, pending, strict=True):
            await append
            self.book.confirm(writer.id, number + 1)
        self.counts["confirmed entries"] += BURST

    async def _follow(self) -> None:
        """Tail a ledger that is being written."""
        written = self.book.written
        if not written:
            await self._pause(_REST_SECONDS)
            return
        ledger_id = written[self._rng.randint(0, len(written) - 1)]
        reader = await self._client.open_ledger(ledger_id, recover=False)
        try:
            async with asyncio.timeout(_TAIL_SECONDS):
                await self._compare(reader, 0, None)
        except TimeoutError:
            return

    async def _catch_up(self) -> None:
        """Read a whole ledger."""
        ledger_id = self.book.some_ended(self._rng)
        if ledger_id is None:
            await self._pause(_REST_SECONDS)
            return
        try:
            reader = await self._client.open_ledger(ledger_id)
            confirmed = self.book.confirmed.get(ledger_id, 0)
            if reader.last_add_confirmed + 1 < confirmed:
                self.counts["violations"] += 1
            await self._compare(reader, 0, reader.last_add_confirmed)
        except NoSuchLedger:
            # Deleted concurrently.
            if ledger_id in self.book.confirmed:
                self.counts["violations"] += 1
        await self._pause(_REST_SECONDS)

    async def _compare(self, reader: LedgerReader, first: int, last: int | None) -> None:
        groups = reader.tail_batches(first) if last is None else reader.read_batches(first, last)
        wanted = first
        async with aclosing(groups) as batches:
            async for batch in batches:
                for entry in batch:
                    good = entry.payload == payload_of(reader.id, wanted, PAYLOAD_BYTES)
                    self.counts["entries read" if good else "violations"] += 1
                    wanted += 1
                if self._over.is_set():
                    return
        if last is not None and wanted <= last:
            self.counts["violations"] += 1

    async def _delete(self) -> None:
        """Keep the number of ledgers constant, including ledgers that other clients have left behind."""
        while (ledger_id := self.book.ended_above(MAX_LEDGERS, self._rng)) is not None:
            self.book.forget(ledger_id)
            await self._client.delete_ledger(ledger_id)
            self.counts["deleted ledgers"] += 1
        known = self.book.confirmed
        strange = {ledger_id async for ledger_id in self._client.list_ledgers() if ledger_id not in known}
        for ledger_id in strange & self._strange:
            if (await self._client.ledger_metadata(ledger_id)).closed and ledger_id not in self.book.confirmed:
                await self._client.delete_ledger(ledger_id)
        self._strange = strange
        await self._pause(10 * _REST_SECONDS)


if __name__ == "__main__":
    app()
