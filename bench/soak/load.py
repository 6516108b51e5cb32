"""The clients of a soak, each a program that says what it did in lines of JSON.

python -m tallybook.bench.soak.load run --metadata URI --book FILE
python -m tallybook.bench.soak.load verify --metadata URI --book FILE

``run`` writes, follows, catches up and deletes until SIGTERM; which entries must be there then is in the book.
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

from tallybook.bench.gates import Figures
from tallybook.bench.payloads import payload_of
from tallybook.bench.programs import print_json_line
from tallybook.client.background import client_tasks
from tallybook.client.client import Client
from tallybook.client.reader.handle import LedgerReader
from tallybook.client.writer.handle import LedgerWriter
from tallybook.core.config import ClientSettings
from tallybook.core.errors import NoSuchLedger, TallybookError, is_defect
from tallybook.core.limits import MIB
from tallybook.runtime.http import HttpServer
from tallybook.runtime.metrics import Metrics
from tallybook.runtime.rng import SeededRng
from tallybook.runtime.tuning import settle_memory, tune_process

from .book import Book

WRITERS: Final = 4
TAILING: Final = 2
CATCHING_UP: Final = 2
MOST_LEDGERS: Final = 60
LEDGER_BURSTS: Final = 40
BURST: Final = 50
PAYLOAD_BYTES: Final = 1_000
BURST_SECONDS: Final = 0.25
VERIFIED_AT_ONCE: Final = 4
_REST_SECONDS: Final = 0.5
_AFTER_ERROR_SECONDS: Final = 1.0
_TAIL_SECONDS: Final = 20.0
_END_SECONDS: Final = 120.0

app = typer.Typer(help=__doc__)

Metadata = Annotated[str, typer.Option(help="URI of the metadata store.")]
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
    """Read everything that was confirmed, and print what is not there."""

    async def work() -> Figures:
        wanted = iter(Book.decode(book.read_text()).confirmed.items())
        counts: Counter[str] = Counter(entries=0, lost=0, ledgers=0)
        async with Client(metadata) as client:

            async def some() -> None:
                for ledger_id, confirmed in wanted:
                    counts["ledgers"] += 1
                    counts["entries"] += confirmed
                    counts["lost"] += confirmed - await _good_entries(client, ledger_id, confirmed)

            await asyncio.gather(*(some() for _ in range(VERIFIED_AT_ONCE)))
        return dict(counts)

    tune_process()
    print_json_line(asyncio.run(work()))


async def _good_entries(client: Client, ledger_id: int, confirmed: int) -> int:
    """How many of the first entries of a ledger are there, as they were written."""
    good = 0
    try:
        reader = await client.open_ledger(ledger_id)
        async for entry in reader.read(0, min(confirmed - 1, reader.last_add_confirmed)):
            good += entry.payload == payload_of(ledger_id, entry.entry_id, PAYLOAD_BYTES)
    except TallybookError as error:
        print_json_line({"ledger": ledger_id, "entries": confirmed, "error": repr(error)})
    return good


def _settings() -> ClientSettings:
    """Of a client whose bookies are killed all the time, and whose caches are full when the warm-up is over."""
    return ClientSettings(
        max_pending_bytes=16 * MIB,
        away_timeout_ms=1_000,
        quarantine_ms=5_000,
        archive_index_bytes=4 * MIB,
        archive_cache_bytes=4 * MIB,
    )


class _Load:
    """The actors. What goes wrong because a bookie is away is counted, and tried again."""

    def __init__(self, client: Client) -> None:
        self.book = Book()
        self.counts: Counter[str] = Counter()
        self._client = client
        self._rng = SeededRng(1)
        self._over = asyncio.Event()
        self._strange: set[int] = set()
        """Ledgers of others, as of the last look."""

    async def run(self) -> None:
        """Until SIGTERM, and until everything that was begun has come to its end."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self._over.set)
        tasks = client_tasks("soak")
        http = HttpServer(Metrics(), lambda: None)
        await http.start("127.0.0.1:0", tasks)
        settle_memory()
        print_json_line({"http": http.address})
        actors = [*[self._write] * WRITERS, *[self._follow] * TAILING, *[self._catch_up] * CATCHING_UP, self._delete]
        async with asyncio.timeout(None) as patience:
            living = [tasks.spawn(self._live(actor), name=actor.__name__) for actor in actors]
            await self._over.wait()
            patience.reschedule(asyncio.get_running_loop().time() + _END_SECONDS)
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
        """Wait for a while, or until all is over."""
        try:
            async with asyncio.timeout(seconds):
                await self._over.wait()
        except TimeoutError:
            return

    async def _write(self) -> None:
        """One ledger, in bursts."""
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
                # Somebody who reads it recovers it.
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
        """Follow a ledger that is written."""
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
        """Read a ledger from its beginning to its end."""
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
            # It was deleted meanwhile.
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
        """Keep the number of ledgers as it is, those included that others have written and left behind."""
        while (ledger_id := self.book.ended_above(MOST_LEDGERS, self._rng)) is not None:
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
