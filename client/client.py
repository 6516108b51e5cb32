"""The client: creates, opens, recovers, lists and deletes ledgers.

    async with Client("sqlite:////var/lib/tallybook/metadata.db") as client:
        async with client.create_ledger() as ledger:
            await ledger.append(b"hello")
        reader = await client.open_ledger(ledger.id)
        async for entry in reader.read(0, reader.last_add_confirmed):
            print(entry.payload)

A client belongs to one event loop; its handles share connections and one byte budget.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import ClassVar, Final, Self

from tallybook.core.errors import InvalidArgument, LedgerInUse, NotEnoughBookies, Outcome, PeerError, TallybookError
from tallybook.core.ids import check_ledger_id
from tallybook.core.keys import SALT_BYTES, key_verifier, ledger_key
from tallybook.core.limits import DEFAULT_STRIPE_ENTRIES, MAX_BATCH_BYTES, MAX_ENTRY_BYTES
from tallybook.core.quorum import Quorum
from tallybook.core.settings import ClientSettings
from tallybook.metadata.ledger.model import DigestType, Fragment, LedgerMetadata, adopt
from tallybook.metadata.ledger_update import LedgerUpdater, Transition
from tallybook.metadata.store import BookieInfo, Versioned
from tallybook.metadata.stream_use import describe_stream_use
from tallybook.runtime.concurrency.async_iterators import PagedListing, ResumableIterator
from tallybook.runtime.concurrency.handle_lifetime import Lifetime, while_open
from tallybook.runtime.concurrency.opening import opens
from tallybook.runtime.logging import logger
from tallybook.runtime.metrics.usage import MetricValue
from tallybook.runtime.rate_limited_log import LogRateLimiter
from tallybook.runtime.tracing.port import NO_TRACER

from .authorization import check_password, ledger_keys
from .background import client_tasks
from .budget import ByteBudget
from .placement.ensembles import choose_ensemble
from .placement.quarantine import Quarantine
from .placement.replacement_probe import ReplacementFinder
from .ports import ClientWorld
from .reader.context import ReaderContext
from .reader.handle import LedgerReader
from .recovery.driver import RecoveryContext, recover_accepting_loss, recover_ledger
from .recovery.lossy import AcceptedLoss
from .recovery_counters import RecoveryCounters
from .stats import ClientNumbers
from .writer.handle import LedgerWriter, WriterContext
from .writer.shared import SharedWriterServices

_log = logger("client")

CLOSE_SECONDS: Final = 10.0
"""How long a cancelled close still waits for the release of resources that it began."""

MAX_UNSETTLED_ADOPTIONS: Final = 1_000
"""Adoptions of unknown outcome whose writer token is remembered; beyond this the oldest is forgotten."""


class Client:
    """Access to the ledgers of one cluster.

    Args:
        cluster: URI of the metadata store, or a ready-made world (for tests and simulation).
        settings: timeouts, limits and policies of the client.

    Raises:
        NoSuchCluster: on opening: there is no cluster at the URI.
        InvalidConfig: on opening: the URI names no metadata store, or needs a library that is not installed.
        MetadataUnavailable: on opening: the store does not answer within ``metadata_timeout_ms``.
        DamagedFile, DiskFailed: on opening: the file of a SQLite store cannot be used.
    """

    budget_type: ClassVar[type[ByteBudget]] = ByteBudget
    """The class of the byte budget; the blocking client uses a thread-safe one."""

    def __init__(self, cluster: str | ClientWorld, settings: ClientSettings | None = None) -> None:
        self._cluster = cluster
        self._settings = settings or ClientSettings()
        self._opened: ClientWorld | None = cluster if isinstance(cluster, ClientWorld) else None
        self._lifetime = Lifetime("the client")
        self._budget = self.budget_type(self._settings.max_pending_bytes)
        self._tasks = client_tasks("client")
        self._writers: list[LedgerWriter] = []
        self._writers_limit = 16
        self._quarantine = Quarantine(self._settings.quarantine_ms / 1000)
        self._counters = RecoveryCounters()
        self._limits: dict[str, int] = {}
        """The largest batch that each known bookie takes, as it said on connecting."""
        self._gone: frozenset[str] = frozenset()
        """Bookies in ``_limits`` that were not registered when bookies were last listed."""
        self._common: SharedWriterServices | None = None
        """Timers, connector and metadata queue that its writers share."""
        self._bad_copies = LogRateLimiter()
        self._unsettled: dict[int, str] = {}
        """Writer tokens of adoptions whose outcome is unknown, by ledger id."""

    async def __aenter__(self) -> Self:
        self._lifetime.check()
        if isinstance(self._cluster, str):
            # Only a real cluster needs the network; a simulated one never loads it.
            from .environment import open_world  # noqa: PLC0415

            self._opened = await open_world(self._cluster, self._settings)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close connections and stop background work. Open ledgers stay open until they are recovered.

        Pending appends fail with ``LedgerClosed``, outcome unknown. Every other waiting call, and every later call of
        the client and its handles, fails with ``HandleClosed``. A cancelled close still releases everything; it waits
        at most ``CLOSE_SECONDS`` for that.
        """
        self._lifetime.check_loop()
        closing = client_tasks("closing client").spawn(self._close(), name="close")
        try:
            await asyncio.shield(closing)
        except asyncio.CancelledError:
            await asyncio.wait([closing], timeout=CLOSE_SECONDS)
            raise

    async def _close(self) -> None:
        self._lifetime.end()
        for writer in self._writers:
            writer.abandon()
        await self._tasks.close()
        world, self._opened = self._opened, None
        if world is not None:
            try:
                await world.connections.close()
                if world.archive is not None:
                    await world.archive.close()
            finally:
                await world.store.close()
                await world.tracer.close()

    @property
    def world(self) -> ClientWorld:
        """The stores, connections and clock that this client uses, for libraries built on it.

        Raises:
            HandleClosed: the client is closed.
            InvalidArgument: the client was not opened.
        """
        if self._lifetime.ended:
            raise self._lifetime.closed(Outcome.NOT_DONE)
        if self._opened is None:
            raise InvalidArgument("the client is not open: use it in an 'async with' block")
        return self._opened

    @property
    def lifetime(self) -> Lifetime:
        """The client's lifetime, which bounds those of its handles and of libraries built on it."""
        return self._lifetime

    @property
    def security(self) -> str:
        """The client's security directory; empty: none."""
        return self._settings.security

    @property
    def max_entry_bytes(self) -> int:
        """The largest entry that every writer of the client takes, given the limits of the live bookies seen so far."""
        living = [limit for bookie_id, limit in self._limits.items() if bookie_id not in self._gone]
        smallest = min(living, default=MAX_BATCH_BYTES) - (MAX_BATCH_BYTES - MAX_ENTRY_BYTES)
        return min(int(self._settings.max_entry_bytes), smallest)

    @property
    def budget(self) -> ByteBudget:
        """The byte budget that the appends of all handles share."""
        return self._budget

    @property
    def pending_bytes(self) -> int:
        """Bytes that the appends of all handles hold: unsent entries, and batches that some bookie has not acked."""
        return self._budget.taken_bytes

    @property
    def max_pending_bytes(self) -> int:
        """The limit of ``pending_bytes``. At the limit ``append`` waits, and ``append_nowait`` raises ``Busy``."""
        return self._budget.limit_bytes

    def stats(self) -> Mapping[str, MetricValue]:
        """Metric readings, named as in ``stats.CLIENT_METRICS``: pending bytes, latencies, errors."""
        world = self._opened
        quarantined = 0 if world is None else self._quarantine.count(world.clock.monotonic())
        archive = None if world is None else world.archive
        return {
            **ClientNumbers(self._budget, self._counters, quarantined).readings(None if world is None else world.load),
            **(archive.readings() if archive is not None else {}),
            **(NO_TRACER if world is None else world.tracer).readings(),
        }

    # -- writing ----------------------------------------------------------------------

    @opens
    async def create_ledger(
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
            password: required to write, open or delete the ledger; empty: no password.
            digest: detects damaged entries; ``HMAC_SHA256`` is keyed by the password.
            custom: the application's own data, stored with the metadata; at most 64 KiB.
            stripe_entries: consecutive entries that go to the same bookies, if the ensemble is larger than the write
                quorum.
            ledger_id: an id from ``reserve_ledger_id``, if the application has to record it before the ledger exists.
            deferred_sync: bookies ack an append before it is durable. The last add confirmed, and so what readers
                see, moves only by ``LedgerWriter.force``, which needs every bookie. The ensemble never changes.

        Raises:
            InvalidArgument: not E >= Qw >= Qa >= 1, or metadata too large.
            NotEnoughBookies: fewer than E writable bookies are alive.
            LedgerExists: a ledger with the given id exists or existed.
            MetadataUnavailable: the store does not answer.
            MetadataOutcomeUnknown: the ledger may have been created, under an id that the caller does not learn.
            DamagedFile, NewerFormat: a registration cannot be decoded.
        """
        quorum = Quorum(ensemble, write_quorum, ack_quorum, stripe_entries)
        metadata = await self._create(quorum, password, digest, custom or {}, self.world.rng.uuid(), ledger_id)
        return self._writer(metadata, password, deferred_sync=deferred_sync)

    @while_open
    async def reserve_ledger_id(self) -> int:
        """Reserve a ledger id. It is never given out again.

        Raises:
            MetadataUnavailable: the store does not answer.
        """
        return await self.world.store.next_ledger_id()

    @while_open
    async def create_unowned_ledger(
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
        """Create a ledger for another client to adopt and write. Arguments are as for ``create_ledger``.

        Raises:
            As ``create_ledger``.
        """
        quorum = Quorum(ensemble, write_quorum, ack_quorum, stripe_entries)
        return await self._create(quorum, password, digest, custom or {}, None)

    @opens
    async def adopt_ledger(self, ledger_id: int, *, password: bytes = b"", deferred_sync: bool = False) -> LedgerWriter:
        """Become the writer of a ledger that never had one.

        Args:
            deferred_sync: as for ``create_ledger``.

        Raises:
            LedgerHasWriter: it has, or had, a writer. Recover it and create another ledger.
            LedgerClosed, LedgerFenced, NoSuchLedger, Unauthorized: it cannot be written.
            MetadataOutcomeUnknown: the adoption may have taken effect. Repeat the call with this client to find out.
            MetadataConflict, MetadataUnavailable: not adopted: concurrent changes, or the store does not answer.
            DamagedFile, NewerFormat: its metadata cannot be decoded.
            InvalidArgument: not a ledger id.
        """
        known = await self._read(ledger_id)
        self.authorize(known.value, password)
        # Removed while in use: of two concurrent calls only one may become the writer.
        token = self._unsettled.pop(ledger_id, None) or self.world.rng.uuid()
        try:
            adopted = await self._updater.update(ledger_id, partial(adopt, writer_token=token), known=known)
        except (PeerError, asyncio.CancelledError):
            self._unsettled[ledger_id] = token
            if len(self._unsettled) > MAX_UNSETTLED_ADOPTIONS:
                del self._unsettled[next(iter(self._unsettled))]
            raise
        return self._writer(adopted.value, password, deferred_sync=deferred_sync)

    async def _create(
        self,
        quorum: Quorum,
        password: bytes,
        digest: DigestType,
        custom: Mapping[str, bytes],
        writer_token: str | None,
        ledger_id: int | None = None,
    ) -> LedgerMetadata:
        world = self.world
        if digest is DigestType.HMAC_SHA256 and not password:
            raise InvalidArgument("an HMAC digest needs a password")
        salt = world.rng.token(SALT_BYTES) if password else b""
        bookies = await self._ensemble(quorum)
        metadata = LedgerMetadata(
            ledger_id=await self.reserve_ledger_id() if ledger_id is None else check_ledger_id(ledger_id),
            quorum=quorum,
            fragments=(Fragment(0, bookies),),
            creator_token=world.rng.uuid(),
            created_at_ms=world.clock.wall_us() // 1000,
            digest=digest,
            key_salt=salt,
            key_verifier=key_verifier(ledger_key(password, salt)) if password else b"",
            writer_token=writer_token,
            custom=dict(custom),
        )
        return (await self._updater.create(metadata)).value

    async def _ensemble(self, quorum: Quorum) -> tuple[str, ...]:
        """Choose the bookies of a new ledger."""
        world = self.world
        try:
            return choose_ensemble(
                await self._living(),
                quorum.ensemble,
                world.rng,
                write_quorum=quorum.write_quorum,
                quarantined=self._quarantine.now(world.clock.monotonic()),
                policy=self._settings.placement,
            )
        except NotEnoughBookies:
            # A store that takes no writes loses the heartbeats of all bookies: this write then fails, and says so.
            await world.store.raise_id_counter(0)
            raise

    def _writer(self, metadata: LedgerMetadata, password: bytes, *, deferred_sync: bool = False) -> LedgerWriter:
        world = self.world
        if self._common is None:
            self._common = SharedWriterServices(
                world.connections, world.clock, world.rng.fork("writers"), self._tasks, self._settings
            )
        context = WriterContext(
            self._common,
            self._finder,
            world.clock,
            self._tasks,
            self._settings,
            self._budget,
            world.tracer,
            self._counters,
            self._limits,
            self._lifetime,
        )
        key, signing = ledger_keys(metadata, password)
        update = partial(self._update, metadata.ledger_id)
        writer = LedgerWriter(metadata, context, update, key=key, digest_key=signing, deferred_sync=deferred_sync)
        self._keep(writer)
        return writer

    def _keep(self, writer: LedgerWriter) -> None:
        """Track a writer while it is open. Ended writers are dropped each time the list has doubled."""
        if len(self._writers) >= self._writers_limit:
            self._writers = [other for other in self._writers if not other.ended]
            self._writers_limit = max(2 * len(self._writers), 16)
        self._writers.append(writer)

    # -- reading ----------------------------------------------------------------------

    @opens
    async def open_ledger(self, ledger_id: int, *, password: bytes = b"", recover: bool = True) -> LedgerReader:
        """Open a ledger for reading.

        With ``recover``, a ledger that is not closed is fenced, recovered and closed first; its writer can then append
        no more. Without, the ledger stays open and the reader sees the confirmed entries.

        Raises:
            NoSuchLedger: never created, or deleted.
            Unauthorized: wrong password, or a password for a ledger that has none.
            InvalidArgument: not a ledger id.
            RecoveryFailed: the last entry cannot be determined now. Nothing was lost; try again. Only with ``recover``.
            BookieUnavailable: too few bookies report the last add confirmed. Only without ``recover``.
            MetadataUnavailable, MetadataConflict, MetadataOutcomeUnknown: the metadata store does not answer, or with
                ``recover`` a change failed; try again.
            DamagedFile, NewerFormat: the ledger's metadata cannot be decoded.
        """
        metadata = await self.ledger_metadata(ledger_id)
        self.authorize(metadata, password)
        if recover and not metadata.closed:
            metadata = await self.recover_ledger(ledger_id, password=password)
        _, signing = ledger_keys(metadata, password)
        reader = LedgerReader(metadata, self._reader_context(), lac=metadata.last_entry_id, digest_key=signing)
        await reader.ask_last_add_confirmed()
        return reader

    def copying_reader(self, metadata: LedgerMetadata, *, archive_first: bool = False) -> LedgerReader:
        """Open a closed ledger for copying, as repair and offload do: no password, and no check of HMACs.

        Args:
            archive_first: read from the archive; ask bookies only for entries that the archive cannot give.

        Raises:
            InvalidArgument: the ledger is not closed.
        """
        if not metadata.closed:
            raise InvalidArgument(f"ledger {metadata.ledger_id} is not closed: only closed ledgers can be copied")
        context = replace(self._reader_context(), background=True)
        return LedgerReader(metadata, context, lac=metadata.last_entry_id, archive_first=archive_first)

    @while_open
    async def recover_ledger(self, ledger_id: int, *, password: bytes = b"") -> LedgerMetadata:
        """Fence a ledger, find its last entry and close it. Of a closed ledger, only return the metadata.

        Raises:
            As ``open_ledger`` with ``recover``.
        """
        context, key, signing = await self._recovery(ledger_id, password)
        return await recover_ledger(context, key=key, digest_key=signing)

    async def recover_accepting_loss(
        self, ledger_id: int, *, password: bytes = b"", lost: Collection[str] = ()
    ) -> AcceptedLoss:
        """Recover a ledger; if that fails, close it after its last good copy. Confirmed entries may be lost then.

        For operators. Entries on a bookie that does not answer are given up only if that bookie is named in ``lost``.

        Raises:
            As ``open_ledger`` with ``recover``. RecoveryFailed: a member that is not in ``lost`` does not answer.
        """
        context, key, signing = await self._recovery(ledger_id, password)
        return await recover_accepting_loss(context, key=key, digest_key=signing, lost=lost)

    async def _recovery(self, ledger_id: int, password: bytes) -> tuple[RecoveryContext, bytes, bytes | None]:
        """The context of a ledger's recovery, the ledger key and the digest key."""
        world = self.world
        metadata = await self.ledger_metadata(ledger_id)
        self.authorize(metadata, password)
        key, signing = ledger_keys(metadata, password)

        def reader_of(metadata: LedgerMetadata, last: int) -> LedgerReader:
            return LedgerReader(metadata, self._reader_context(), lac=last, digest_key=signing)

        update = partial(self._update, ledger_id)
        context = RecoveryContext(
            world.connections, self._finder, world.clock, world.rng, self._settings, update, reader_of, self._counters
        )
        return context, key, signing

    def _reader_context(self) -> ReaderContext:
        world = self.world
        return ReaderContext(
            world.connections,
            world.clock,
            world.rng,
            self._tasks,
            self._settings,
            self._read,
            world.store.watch_ledger,
            self._report_copy,
            world.archive,
            world.tracer,
            self._counters,
            self._lifetime,
        )

    # -- managing ---------------------------------------------------------------------

    @while_open
    async def ledger_metadata(self, ledger_id: int) -> LedgerMetadata:
        """The ledger's current metadata.

        Raises:
            InvalidArgument: not a ledger id.
            NoSuchLedger: never created, or deleted.
            MetadataUnavailable: the store does not answer.
            DamagedFile, NewerFormat: the metadata cannot be decoded.
        """
        return (await self._read(ledger_id)).value

    def list_ledgers(self) -> PagedListing[int]:
        """Ids of all ledgers, ascending.

        Raises:
            MetadataUnavailable: the store does not answer.
            HandleClosed: the client is closed.
        """
        after: int | None = -1

        async def pages() -> AsyncGenerator[Sequence[int], None]:
            nonlocal after
            while after is not None:
                page = await self.world.store.list_ledgers(after)
                after = page.next_after()
                if page.ledger_ids:
                    yield page.ledger_ids

        return PagedListing(ResumableIterator(pages, partial(self._tasks.spawn, name="list"), self._lifetime))

    @while_open
    async def delete_ledger(self, ledger_id: int, *, password: bytes = b"", force: bool = False) -> None:
        """Delete a ledger. Its id is never used again.

        Args:
            force: delete it even if it is part of a stream, which then loses records.

        Raises:
            LedgerInUse: it is part of a stream.
            NoSuchLedger: never created, or deleted before.
            Unauthorized: wrong password, or a password for a ledger that has none.
            MetadataConflict, MetadataOutcomeUnknown: concurrent changes, or the outcome is unknown; try again.
            MetadataUnavailable: the store does not answer.
            DamagedFile, NewerFormat: the ledger's metadata cannot be decoded.
            InvalidArgument: not a ledger id.
        """
        ledger = await self.ledger_metadata(ledger_id)
        self.authorize(ledger, password)
        use = None if force else await describe_stream_use(self.world.store, ledger)
        if use is not None:
            raise LedgerInUse(f"ledger {ledger_id} is {use}: delete or truncate the stream, or force the deletion")
        await self._updater.delete(ledger_id)

    def authorize(self, metadata: LedgerMetadata, password: bytes) -> None:
        """Check the password of a ledger.

        Raises:
            Unauthorized: wrong password, or a password for a ledger that has none.
        """
        check_password(metadata, password)

    @while_open
    async def bookies(self) -> Mapping[str, BookieInfo]:
        """Live bookies by id.

        Raises:
            HandleClosed: the client is closed.
            MetadataUnavailable: the store does not answer.
            DamagedFile, NewerFormat: a registration cannot be decoded.
        """
        return await self._living()

    async def _living(self) -> Mapping[str, BookieInfo]:
        bookies = await self.world.membership.bookies()
        self._gone = frozenset(self._limits.keys() - bookies.keys())
        return bookies

    async def _read(self, ledger_id: int) -> Versioned:
        return await self.world.store.read_ledger(check_ledger_id(ledger_id), linearizable=True)

    async def _update(self, ledger_id: int, transition: Transition) -> Versioned:
        return await self._updater.update(ledger_id, transition)

    def _report_copy(self, bookie_id: str, ledger_id: int, entry_id: int, error: TallybookError) -> None:
        """Log a bad copy, rate-limited: the first of a range, and a second later how many more there were."""
        suppressed = self._bad_copies.due(self.world.clock.monotonic(), (bookie_id, ledger_id, type(error)))
        if suppressed is not None:
            _log.warning(
                "bad copy",
                bookie_id=bookie_id,
                ledger_id=ledger_id,
                entry_id=entry_id,
                error=error.message,
                untold_count=suppressed,
            )

    @property
    def _finder(self) -> ReplacementFinder:
        world = self.world
        return ReplacementFinder(
            world.membership,
            world.connections,
            world.clock,
            world.rng,
            self._quarantine,
            self._settings,
            self._limits,
        )

    @property
    def _updater(self) -> LedgerUpdater:
        world = self.world
        return LedgerUpdater(
            world.store, world.clock, world.rng, timeout_seconds=2 * self._settings.metadata_timeout_ms / 1000
        )
