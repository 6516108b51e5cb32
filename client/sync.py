"""The client for programs without asyncio: the same calls, each of which blocks until its answer is there.

    with Client("sqlite:////var/lib/tallybook/metadata.db") as client:
        with client.create_ledger() as ledger:
            ledger.append(b"hello")
        reader = client.open_ledger(ledger.id)
        for entry in reader.read(0, reader.last_add_confirmed):
            print(entry.payload)

It is the asyncio client, which runs in one thread beside the program's own, and nothing else: what it promises,
what it raises, its deadlines and its limits are those of ``tallybook.client``.

    threads of the program                       thread "tallybook client"
    Client, LedgerWriter, LedgerReader  --run--> tallybook.client: Client, LedgerWriter, LedgerReader

Any number of threads may share a client and its handles. Ctrl-C in a thread that waits cancels what it waits for,
and leaves the client as good as before. A process that forks must not use a client that it had opened before: the
child has neither the thread nor connections of its own, and is refused. Open one in the child.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any, Final, Self

from tallybook.core.batch import Entry
from tallybook.core.config import ClientSettings
from tallybook.core.errors import InvalidArgument
from tallybook.core.limits import DEFAULT_STRIPE_ENTRIES
from tallybook.metadata.model import DigestType, LedgerMetadata, LedgerState
from tallybook.metadata.store import BookieInfo
from tallybook.runtime.blocking import LoopThread
from tallybook.runtime.loop_iteration import LoopIterator
from tallybook.runtime.meter import Reading

from . import client as asyncio_client
from .budget import SharedByteBudget
from .crossing import Appends, crossing
from .ports import ClientWorld
from .sync_reader import LedgerReader
from .sync_writer import ChosenIdsWriter, LedgerWriter, PendingAppend
from .writer import handle

__all__ = [
    "ChosenIdsWriter",
    "Client",
    "ClientSettings",
    "DigestType",
    "Entry",
    "LedgerMetadata",
    "LedgerReader",
    "LedgerState",
    "LedgerWriter",
    "PendingAppend",
]

_IDS_TOGETHER: Final = 1_000
"""Ledger ids that cross over from the loop at a time."""


class _Engine(asyncio_client.Client):
    """The asyncio client, whose budget other threads take from."""

    budget_type = SharedByteBudget


class Client:
    """Access to the ledgers of one cluster, for callers that block.

    Args:
        cluster: URI of the metadata store, or a ready-made world (for tests).
        settings: how the client behaves.

    Raises:
        NoSuchCluster: as it is opened: there is none at the URI.
        InvalidConfig: as it is opened: the URI names no metadata store, or needs a library that is not installed.
        MetadataUnavailable: as it is opened: the store does not answer within ``metadata_timeout_ms``.
        DamagedFile, DiskFailed: as it is opened: the file of a SQLite store cannot be used.
    """

    def __init__(self, cluster: str | ClientWorld, settings: ClientSettings | None = None) -> None:
        self._engine = _Engine(cluster, settings)
        self._opened: tuple[LoopThread, Appends] | None = None
        self._carried: list[Callable[[], Coroutine[Any, Any, object]]] = []

    def __enter__(self) -> Self:
        if self._opened is not None:
            raise InvalidArgument("the client was opened before: make another one")
        loop = LoopThread("tallybook client")
        self._opened = loop, crossing(loop)
        try:
            loop.run(self._engine.__aenter__())
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def _running(self) -> tuple[LoopThread, Appends]:
        if self._opened is None:
            raise InvalidArgument("the client is not open: use it in a 'with' block")
        return self._opened

    @property
    def _loop(self) -> LoopThread:
        return self._running[0]

    def standing(self) -> tuple[asyncio_client.Client, Appends]:
        """The asyncio client and the way to its loop, for what stands upon them.

        Raises:
            HandleClosed: the client is closed.
        """
        loop, appends = self._running
        loop.check_open()
        return self._engine, appends

    def carry(self, end: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """Have something that stands upon the client end before it: by ``end``, which is run on the loop."""
        self._carried.append(end)

    def put_down(self, end: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """It has ended by itself. Nothing, if that is known."""
        if end in self._carried:
            self._carried.remove(end)

    def close(self) -> None:
        """Drop connections and background work. Open ledgers stay open, for a recovery to end.

        What is still pending fails with ``LedgerClosed``, its outcome unknown; a thread that waits for anything else
        gets ``HandleClosed``, as does every later call. Interrupted (Ctrl-C), it drops everything all the same.

        Raises:
            InvalidArgument: called on the client's own thread.
        """
        if self._opened is None:
            return
        loop, appends = self._opened

        async def last() -> None:
            async with AsyncExitStack() as stack:
                # Last of all, when the writers have ended: what was handed over before is told so.
                stack.callback(appends.close)
                stack.push_async_callback(self._engine.close)
                for end in self._carried:
                    stack.push_async_callback(end)

        loop.close(last)

    @property
    def pending_bytes(self) -> int:
        """What the appends of all handles hold now: entries that gather, and batches some bookie still has to take."""
        return self._engine.pending_bytes

    def stats(self) -> Mapping[str, Reading]:
        """Numbers for metrics; see the other client. From any thread."""
        return self._engine.stats()

    @property
    def max_entry_bytes(self) -> int:
        """The largest entry that its writers take."""
        return self._engine.max_entry_bytes

    @property
    def max_pending_bytes(self) -> int:
        """What they may hold. Above it ``append`` waits for room, and ``append_nowait`` raises ``Busy``."""
        return self._engine.max_pending_bytes

    # -- writing ----------------------------------------------------------------------

    def create_ledger(
        self,
        *,
        ensemble: int = 3,
        write_quorum: int = 3,
        ack_quorum: int = 2,
        password: bytes = b"",
        digest: DigestType = DigestType.CRC32C,
        custom: Mapping[str, bytes] | None = None,
        stripe_entries: int = DEFAULT_STRIPE_ENTRIES,
        deferred_sync: bool = False,
        ledger_id: int | None = None,
    ) -> LedgerWriter:
        """Create a ledger and become its writer.

        Args:
            ensemble: bookies that the ledger is spread over.
            write_quorum: bookies that hold each entry.
            ack_quorum: bookies that have an entry on disk before it is confirmed.
            password: to be shown by whoever writes, opens or deletes the ledger; empty: no password is needed.
            digest: what tells damaged bytes; ``HMAC_SHA256`` is keyed by the password.
            custom: kept with the metadata, for whoever creates ledgers; at most 64 KiB.
            stripe_entries: entries in a row that go to the same bookies, where the ensemble is larger than the write
                quorum.
            ledger_id: one from ``reserve_ledger_id``, for whoever has to write it down before the ledger is there.
            deferred_sync: bookies ack an append before it is durable. The last add confirmed, and so what readers
                see, moves only by ``LedgerWriter.force``, which needs every bookie; none is ever replaced.

        Raises:
            InvalidArgument: not E >= Qw >= Qa >= 1, or metadata too large.
            NotEnoughBookies: fewer than E writable bookies are alive.
            LedgerExists: of the given id there is, or was, a ledger.
            MetadataUnavailable: the store does not answer.
            MetadataOutcomeUnknown: there may be a ledger of which nobody knows the id.
            DamagedFile, NewerFormat: a registration cannot be decoded.
        """
        created = self._loop.run(
            self._engine.create_ledger(
                ensemble=ensemble,
                write_quorum=write_quorum,
                ack_quorum=ack_quorum,
                password=password,
                digest=digest,
                custom=custom,
                stripe_entries=stripe_entries,
                deferred_sync=deferred_sync,
                ledger_id=ledger_id,
            )
        )
        return self._writer(created)

    def reserve_ledger_id(self) -> int:
        """A ledger id that nobody else ever gets.

        Raises:
            MetadataUnavailable: the store does not answer.
            HandleClosed: the client is closed.
        """
        return self._loop.run(self._engine.reserve_ledger_id())

    def create_unowned_ledger(
        self,
        *,
        ensemble: int = 3,
        write_quorum: int = 3,
        ack_quorum: int = 2,
        password: bytes = b"",
        digest: DigestType = DigestType.CRC32C,
        custom: Mapping[str, bytes] | None = None,
        stripe_entries: int = DEFAULT_STRIPE_ENTRIES,
    ) -> LedgerMetadata:
        """Create a ledger for somebody else to adopt and write. Arguments are as for ``create_ledger``.

        Raises:
            As ``create_ledger``.
        """
        return self._loop.run(
            self._engine.create_unowned_ledger(
                ensemble=ensemble,
                write_quorum=write_quorum,
                ack_quorum=ack_quorum,
                password=password,
                digest=digest,
                custom=custom,
                stripe_entries=stripe_entries,
            )
        )

    def adopt_ledger(self, ledger_id: int, *, password: bytes = b"", deferred_sync: bool = False) -> LedgerWriter:
        """Become the writer of a ledger that never had one.

        Args:
            deferred_sync: as for ``create_ledger``.

        Raises:
            LedgerHasWriter: it has, or had, a writer: recover it and create the next one.
            LedgerClosed, LedgerFenced, NoSuchLedger, Unauthorized: it cannot be written.
            MetadataOutcomeUnknown: it may be ours; the same call, of this client, settles it.
            MetadataConflict, MetadataUnavailable: it would not settle, or the store does not answer; not ours.
            DamagedFile, NewerFormat: its metadata cannot be decoded.
            InvalidArgument: not a ledger id.
        """
        adopted = self._loop.run(self._engine.adopt_ledger(ledger_id, password=password, deferred_sync=deferred_sync))
        return self._writer(adopted)

    def _writer(self, engine: handle.LedgerWriter) -> LedgerWriter:
        return LedgerWriter(engine, self._running[1], self._engine.budget)

    # -- reading ----------------------------------------------------------------------

    def open_ledger(self, ledger_id: int, *, password: bytes = b"", recover: bool = True) -> LedgerReader:
        """Open a ledger for reading.

        With ``recover``, a ledger that is not closed is fenced, recovered and closed first: its
        writer is out. Without, the ledger stays as it is and the reader sees what is confirmed.

        Raises:
            NoSuchLedger: never created, or deleted.
            Unauthorized: the password does not fit, or one is given for a ledger that has none.
            InvalidArgument: not a ledger id.
            RecoveryFailed: the end cannot be told now; nothing was lost, try again. Only with ``recover``.
            BookieUnavailable: too few bookies tell what is confirmed. Only without.
            MetadataUnavailable: the metadata store does not answer; try again.
            MetadataConflict, MetadataOutcomeUnknown: a step of the recovery would not settle; try again. Only with
                ``recover``.
            DamagedFile, NewerFormat: the ledger's metadata cannot be decoded.
        """
        opened = self._loop.run(self._engine.open_ledger(ledger_id, password=password, recover=recover))
        return LedgerReader(opened, self._loop)

    def copying_reader(self, metadata: LedgerMetadata, *, archive_first: bool = False) -> LedgerReader:
        """A reader of a closed ledger for whoever copies it: it needs no password, and checks no HMAC.

        Args:
            archive_first: bookies are asked only for what the archive does not give.

        Raises:
            InvalidArgument: the ledger is not closed.
        """
        reader = self._loop.call(self._engine.copying_reader, metadata, archive_first=archive_first)
        return LedgerReader(reader, self._loop)

    def recover_ledger(self, ledger_id: int, *, password: bytes = b"") -> LedgerMetadata:
        """Fence a ledger, find its end and close it; of a closed ledger, return the metadata.

        Raises:
            As ``open_ledger`` with ``recover``.
        """
        return self._loop.run(self._engine.recover_ledger(ledger_id, password=password))

    # -- managing ---------------------------------------------------------------------

    def ledger_metadata(self, ledger_id: int) -> LedgerMetadata:
        """The ledger's metadata as it is now.

        Raises:
            InvalidArgument: not a ledger id.
            NoSuchLedger: never created, or deleted.
            MetadataUnavailable: the store does not answer.
            DamagedFile, NewerFormat: they cannot be decoded.
        """
        return self._loop.run(self._engine.ledger_metadata(ledger_id))

    def list_ledgers(self) -> LoopIterator[int]:
        """Ids of all ledgers, ascending.

        Raises:
            MetadataUnavailable: the store does not answer.
            HandleClosed: the client is closed.
        """
        return self._loop.iterate(self._engine.list_ledgers(), together=_IDS_TOGETHER)

    def delete_ledger(self, ledger_id: int, *, password: bytes = b"", force: bool = False) -> None:
        """Remove a ledger. Its id is never used again.

        Args:
            force: delete it even if it is part of a living stream, which loses records.

        Raises:
            LedgerInUse: it is part of a living stream.
            NoSuchLedger: never created, or deleted before.
            Unauthorized: the password does not fit, or one is given for a ledger that has none.
            MetadataConflict, MetadataOutcomeUnknown: it would not settle; try again.
            MetadataUnavailable: the store does not answer.
            DamagedFile, NewerFormat: the ledger's metadata cannot be decoded.
            InvalidArgument: not a ledger id.
        """
        self._loop.run(self._engine.delete_ledger(ledger_id, password=password, force=force))

    def bookies(self) -> Mapping[str, BookieInfo]:
        """Live bookies by id.

        Raises:
            MetadataUnavailable: the store does not answer.
            DamagedFile, NewerFormat: a registration cannot be decoded.
            HandleClosed: the client is closed.
        """
        return self._loop.run(self._engine.bookies())
