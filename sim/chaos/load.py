"""A load process: several writers, readers and recoverers of one client, until SIGTERM.

Actors find ledgers of other actors by listing. Operations and results go into the log of the process (``records``).
After SIGTERM the writers finish their ledgers, and the process exits with 0. SIGUSR1 prints to standard error where
every task waits.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

from tallybook.bench.loads.payloads import MIN_BYTES, payload_of
from tallybook.client.client import Client
from tallybook.client.reader.handle import LedgerReader
from tallybook.client.writer.appends import PendingAppend
from tallybook.client.writer.handle import LedgerWriter
from tallybook.core.errors import Busy, Outcome, PeerError, TallybookError, is_defect
from tallybook.core.limits import MIB
from tallybook.core.quorum import Quorum
from tallybook.core.settings import ClientSettings
from tallybook.metadata.ledger.model import DigestType, LedgerMetadata
from tallybook.runtime.clock import Clock
from tallybook.runtime.rng import Rng
from tallybook.runtime.tasks import Tasks

from .records import Recorder

PASSWORD: Final = b"open sesame"
CANNOT_OPEN: Final = 75
"""Exit code of a process whose client could not be opened because the metadata store did not answer."""

CLOSE_ATTEMPTS: Final = 5
MAX_BURSTS_PENDING: Final = 3
SHORT_TAIL: Final = 100
"""A reader that does not start at entry 0 starts so many entries before the last add confirmed."""

QUORUMS: Final = (Quorum(3, 3, 2), Quorum(3, 2, 2, 8), Quorum(3, 3, 3), Quorum(4, 3, 2, 16), Quorum(2, 2, 1))

LoadTask: TypeAlias = Callable[[str, Rng], Awaitable[None]]
PendingAppends: TypeAlias = list[tuple[int, PendingAppend]]


def client_settings() -> ClientSettings:
    """Settings of all clients of a run, with short timeouts."""
    return ClientSettings(
        add_timeout_ms=3_000, away_timeout_ms=500, request_timeout_ms=2_000, connect_timeout_ms=1_500,
        reconnect_ms=100, metadata_timeout_ms=5_000, explicit_lac_ms=50, tail_wait_ms=1_000, quarantine_ms=2_000,
        max_batch_bytes=64 * 1024, max_pending_bytes=MIB, max_in_flight_batches=4,
    )  # fmt: skip


class LoadProcess:
    """The actors of one process.

    Args:
        writers, readers, recoverers: number of actors of each kind.
    """

    def __init__(
        self,
        name: str,
        client: Client,
        records: Recorder,
        clock: Clock,
        rng: Rng,
        *,
        writers: int,
        readers: int,
        recoverers: int,
    ) -> None:
        self._name = name
        self._client = client
        self._records = records
        self._clock = clock
        self._rng = rng
        self._counts: tuple[tuple[str, int, LoadTask], ...] = (
            ("writer", writers, self._writer),
            ("reader", readers, self._reader),
            ("recoverer", recoverers, self._recoverer),
        )
        self._tasks = Tasks(name, self._died)
        self._over = asyncio.Event()

    async def run(self) -> None:
        """Run all actors until SIGTERM, then let them finish."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._over.set)
        loop.add_signal_handler(signal.SIGUSR1, print_tasks)
        living = [
            self._tasks.spawn(self._live(f"{self._name}/{kind}-{number}", actor), name=f"{kind}-{number}")
            for kind, count, actor in self._counts
            for number in range(count)
        ]
        await asyncio.gather(*living)
        await self._tasks.close()

    def _died(self, name: str, error: BaseException) -> None:
        self._records.note("violation", "client", -1, f"{name}: {error!r}")

    async def _live(self, name: str, actor: LoadTask) -> None:
        rng = self._rng.fork(name)
        while not self._over.is_set():
            try:
                await actor(name, rng)
            except TallybookError as error:
                if is_defect(error):
                    self._records.note("violation", "defect", -1, f"{name} met {error!r}")
                await self._pause(rng, 0.3)
            except Exception as error:  # noqa: BLE001 - any undeclared error of a client is a defect
                self._records.note("violation", "client", -1, f"{name} met {error!r}")
                await self._pause(rng, 0.3)

    async def _pause(self, rng: Rng, mean_seconds: float) -> None:
        """Wait for a random time, or until SIGTERM."""
        try:
            async with asyncio.timeout(2 * mean_seconds * rng.random()):
                await self._over.wait()
        except TimeoutError:
            return

    # -- writers --------------------------------------------------------------------------

    async def _writer(self, name: str, rng: Rng) -> None:
        """Create one ledger, write it in bursts, close it or leave it open."""
        ledger = await self._create(name, rng)
        number, largest = 0, rng.randint(1, 50)
        settling: list[asyncio.Task[None]] = []
        for _ in range(rng.randint(1, 150)):
            number, sent = self._burst(name, ledger, number, rng.randint(1, largest), rng)
            before = settling[-1] if settling else None
            settling.append(self._tasks.spawn(self._settle(sent, before), name=f"{name}/settle"))
            await self._pause(rng, 0.1)
            if len(settling) > MAX_BURSTS_PENDING:
                await asyncio.wait((settling.pop(0),))
            if ledger.ended or self._over.is_set():
                break
        if settling and rng.random() < 0.5:
            await asyncio.wait((settling[-1],))
        if rng.random() < 0.8:
            await self._close(name, ledger, rng)
        else:
            ledger.abandon()
        if settling:
            await asyncio.wait((settling[-1],))

    async def _create(self, name: str, rng: Rng) -> LedgerWriter:
        quorum = QUORUMS[rng.randint(0, len(QUORUMS) - 1)]
        locked = rng.random() < 0.3
        create = self._records.begin("create", name)
        try:
            ledger = await self._client.create_ledger(
                ensemble=quorum.ensemble, write_quorum=quorum.write_quorum, ack_quorum=quorum.ack_quorum,
                stripe_entries=quorum.stripe_entries, password=PASSWORD if locked else b"",
                digest=DigestType.HMAC_SHA256 if locked and rng.random() < 0.5 else DigestType.CRC32C,
            )  # fmt: skip
        except TallybookError as error:
            self._failed(create, error)
            raise
        self._records.note("made", create, ledger.id)
        return ledger

    def _burst(self, name: str, ledger: LedgerWriter, number: int, count: int, rng: Rng) -> tuple[int, PendingAppends]:
        """Append some entries; return the next entry number and the accepted appends."""
        sent: PendingAppends = []
        for _ in range(count):
            max_bytes = 60_000 if rng.random() < 0.01 else 1_500
            size = rng.randint(MIN_BYTES, max_bytes)
            append = self._records.begin("append", name, ledger.id, number, size)
            try:
                sent.append((append, ledger.append_nowait(payload_of(ledger.id, number, size))))
            except TallybookError as error:
                self._failed(append, error)
                if not isinstance(error, Busy):
                    break
            number += 1
        return number + 1, sent

    async def _settle(self, sent: PendingAppends, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            # Two tasks that wait for entries of one batch may wake up in any order.
            await asyncio.wait((before,))
        for append, pending in sent:
            try:
                entry_id = await pending
            except TallybookError as error:
                self._failed(append, error)
            except Exception as error:  # noqa: BLE001 - as in _live; the error would be lost
                self._records.note("violation", "client", -1, f"append {append} ended with {error!r}")
            else:
                self._records.note("ok", append, entry_id)

    async def _close(self, name: str, ledger: LedgerWriter, rng: Rng) -> None:
        for _ in range(CLOSE_ATTEMPTS):
            close = self._records.begin("close", name, ledger.id)
            try:
                self._ended(close, await ledger.close())
            except TallybookError as error:
                self._failed(close, error)
                if not error.retriable and error.outcome is not Outcome.UNKNOWN:
                    break
                await self._pause(rng, 0.3)
            else:
                return
        ledger.abandon()

    # -- recoverers and readers -----------------------------------------------------------

    async def _recoverer(self, name: str, rng: Rng) -> None:
        await self._pause(rng, 1.0)
        metadata = await self._some_ledger(rng)
        if metadata is None or metadata.closed:
            return
        recover = self._records.begin("recover", name, metadata.ledger_id)
        try:
            self._ended(recover, await self._client.recover_ledger(metadata.ledger_id, password=password_of(metadata)))
        except TallybookError as error:
            self._failed(recover, error)
            raise

    async def _reader(self, name: str, rng: Rng) -> None:
        """Follow one ledger for some seconds, or to its end."""
        await self._pause(rng, 0.3)
        metadata = await self._some_ledger(rng)
        if metadata is None:
            return
        try:
            async with asyncio.timeout(1.0 + 5.0 * rng.random()):
                await self._read(name, metadata, rng)
        except TimeoutError:
            return
        except PeerError:
            # Bookies are unavailable. The entries read so far count.
            await self._pause(rng, 0.2)

    async def _read(self, name: str, metadata: LedgerMetadata, rng: Rng) -> None:
        ledger_id, records = metadata.ledger_id, self._records
        reader = await self._client.open_ledger(ledger_id, password=password_of(metadata), recover=False)
        reading = records.reading(name, ledger_id)
        lac = self._record_lac(reading, reader, None)
        first = 0 if rng.random() < 0.3 else max(0, lac - SHORT_TAIL)
        async for entry in reader.tail(first):
            records.saw(reading, ledger_id, entry.entry_id, entry.payload)
            lac = self._record_lac(reading, reader, lac)
        self._record_lac(reading, reader, lac)
        if first == 0:
            records.note("done", reading, reader.metadata.last_entry_id, reader.metadata.length)

    def _record_lac(self, reading: int, reader: LedgerReader, before: int | None) -> int:
        lac = reader.last_add_confirmed
        if lac != before:
            self._records.note("lac", reading, lac)
        return lac

    async def _some_ledger(self, rng: Rng) -> LedgerMetadata | None:
        """Draw a ledger, mostly a young one; ``None`` if there is none."""
        known = [ledger_id async for ledger_id in self._client.list_ledgers()]
        if not known:
            return None
        newest = len(known) - 1
        return await self._client.ledger_metadata(known[newest - int(newest * rng.random() ** 4)])

    def _ended(self, operation: int, metadata: LedgerMetadata) -> None:
        self._records.note("end", operation, metadata.last_entry_id, metadata.length)

    def _failed(self, operation: int, error: TallybookError) -> None:
        if is_defect(error):
            self._records.note("violation", "defect", -1, repr(error))
        if error.outcome is Outcome.NOT_DONE:
            self._records.note("failed", operation)


def password_of(metadata: LedgerMetadata) -> bytes:
    """Password of a ledger that a load created."""
    return PASSWORD if metadata.key_verifier else b""


def print_tasks() -> None:
    """Print the stack of every task of the running loop to standard error."""
    for task in sorted(asyncio.all_tasks(), key=asyncio.Task.get_name):
        task.print_stack(file=sys.stderr)
    sys.stderr.flush()
