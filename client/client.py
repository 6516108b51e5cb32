"""The client: creates, opens, recovers, lists and deletes ledgers.

    async with Client("sqlite:////var/lib/tallybook/metadata.db") as client:
        async with await client.create_ledger() as ledger:
            await ledger.append(b"hello")
        reader = await client.open_ledger(ledger.id)
        async for entry in reader.read(0, reader.last_add_confirmed):
            print(entry.payload)

A client belongs to one event loop; its handles share connections and one byte budget.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import ClassVar, Final, Self

from tallybook.core.config import ClientSettings
from tallybook.core.errors import InvalidArgument, LedgerInUse, Outcome, PeerError, TallybookError, Unauthorized
from tallybook.core.ids import check_ledger_id
from tallybook.core.keys import SALT_BYTES, digest_key, key_fits, key_verifier, ledger_key
from tallybook.core.limits import DEFAULT_STRIPE_ENTRIES, MAX_BATCH_BYTES, MAX_ENTRY_BYTES
from tallybook.core.quorum import Quorum
from tallybook.metadata.ledger_use import use_of
from tallybook.metadata.model import DigestType, Fragment, LedgerMetadata, adopt
from tallybook.metadata.store import BookieInfo, Versioned
from tallybook.metadata.update import LedgerUpdater
from tallybook.runtime.lifetime import Lifetime, while_open
from tallybook.runtime.logging import logger
from tallybook.runtime.meter import Reading
from tallybook.runtime.seldom import Seldom
from tallybook.runtime.steps import Listing, Steps
from tallybook.runtime.tracing import NO_TRACER

from .background import client_tasks
from .budget import ByteBudget
from .deeds import Deeds
from .placement import choose_ensemble
from .ports import ClientWorld, Transition
from .quarantine import Quarantine
from .reader.context import ReaderContext
from .reader.handle import LedgerReader
from .recovery.driver import RecoveryContext, recover_accepting_loss, recover_ledger
from .recovery.lossy import AcceptedLoss
from .spares import Spares
from .writer.common import CommonWork
from .writer.handle import LedgerWriter, WriterContext

_log = logger("client")

CLOSE_SECONDS: Final = 10.0
"""How long a close that is cancelled still waits for what it has begun to let go of."""

MAX_UNSETTLED_ADOPTIONS: Final = 1_000
"""Adoptions of unknown outcome whose token is remembered; beyond it the oldest is forgotten."""


class Client:
    """Access to the ledgers of one cluster.

    Args:
        cluster: URI of the metadata store, or a ready-made world (for tests and simulation).
        settings: how the client behaves.

    Raises:
        NoSuchCluster: as it is opened: there is none at the URI.
        InvalidConfig: as it is opened: the URI names no metadata store, or needs a library that is not installed.
        MetadataUnavailable: as it is opened: the store does not answer within ``metadata_timeout_ms``.
        DamagedFile, DiskFailed: as it is opened: the file of a SQLite store cannot be used.
    """

    budget_type: ClassVar[type[ByteBudget]] = ByteBudget
    """What bounds the appends; another one where threads take part."""

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
        self._deeds = Deeds()
        self._limits: dict[str, int] = {}
        """The largest batch of each bookie that was connected to."""
        self._gone: frozenset[str] = frozenset()
        """Of these, those that were not among the living when they were last listed."""
        self._common: CommonWork | None = None
        """What its writers do together."""
        self._bad_copies = Seldom()
        self._unsettled: dict[int, str] = {}
        """The token of each adoption that may or may not have taken effect, by ledger id."""

    async def __aenter__(self) -> Self:
        self._lifetime.check()
        if isinstance(self._cluster, str):
            # Only a real cluster needs the network; a simulated one never loads it.
            from .world import open_world  # noqa: PLC0415

            self._opened = await open_world(self._cluster, self._settings)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Drop connections and background work. Open ledgers stay open, for a recovery to end.

        What is still pending fails with ``LedgerClosed``, its outcome unknown; every other call that waits, and every
        later one of the client and its handles, with ``HandleClosed``. When cancelled, it drops everything all the
        same, which takes no longer than a connection may take to close.
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
        """The stores and seams this client stands on, for what is built on top of it.

        Raises:
            HandleClosed: the client is closed.
            InvalidArgument: it was not opened.
        """
        if self._lifetime.ended:
            raise self._lifetime.closed(Outcome.NOT_DONE)
        if self._opened is None:
            raise InvalidArgument("the client is not open: use it in an 'async with' block")
        return self._opened

    @property
    def lifetime(self) -> Lifetime:
        """Ends with the client, as does what is built on top of it."""
        return self._lifetime

    @property
    def security(self) -> str:
        """Its security directory; empty: none."""
        return self._settings.security

    @property
    def max_entry_bytes(self) -> int:
        """The largest entry that all its writers take, as far as living bookies that it met told what they take."""
        living = [most for bookie_id, most in self._limits.items() if bookie_id not in self._gone]
        least = min(living, default=MAX_BATCH_BYTES) - (MAX_BATCH_BYTES - MAX_ENTRY_BYTES)
        return min(int(self._settings.max_entry_bytes), least)

    @property
    def budget(self) -> ByteBudget:
        """What the appends of all handles may hold together."""
        return self._budget

    @property
    def pending_bytes(self) -> int:
        """What the appends of all handles hold now: entries that gather, and batches some bookie still has to take."""
        return self._budget.taken_bytes

    @property
    def max_pending_bytes(self) -> int:
        """What they may hold. Above it ``append`` waits for room, and ``append_nowait`` raises ``Busy``."""
        return self._budget.limit_bytes

    def stats(self) -> Mapping[str, Reading]:
        """Numbers for metrics, named as in ``metrics.CLIENT_METRICS``: what appends hold, and how long bookies take."""
        load = None if self._opened is None else self._opened.load
        archive = None if self._opened is None else self._opened.archive
        return {
            "client_pending_bytes": self._budget.taken_bytes,
            "client_max_pending_bytes": self._budget.limit_bytes,
            "client_no_room": self._budget.no_room,
            "client_confirm_seconds": self._budget.confirm_seconds,
            "client_quarantined": 0 if self._opened is None else self._quarantine.count(self._opened.clock.monotonic()),
            **self._deeds.readings(),
            **(load.readings() if load is not None else {}),
            **(archive.readings() if archive is not None else {}),
            **(NO_TRACER if self._opened is None else self._opened.tracer).readings(),
        }

    # -- writing ----------------------------------------------------------------------

    @while_open
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
        quorum = Quorum(ensemble, write_quorum, ack_quorum, stripe_entries)
        metadata = await self._create(quorum, password, digest, custom or {}, self.world.rng.uuid(), ledger_id)
        return self._writer(metadata, password, deferred_sync=deferred_sync)

    @while_open
    async def reserve_ledger_id(self) -> int:
        """A ledger id that nobody else ever gets.

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
        """Create a ledger for somebody else to adopt and write. Arguments are as for ``create_ledger``.

        Raises:
            As ``create_ledger``.
        """
        quorum = Quorum(ensemble, write_quorum, ack_quorum, stripe_entries)
        return await self._create(quorum, password, digest, custom or {}, None)

    @while_open
    async def adopt_ledger(self, ledger_id: int, *, password: bytes = b"", deferred_sync: bool = False) -> LedgerWriter:
        """Become the writer of a ledger that never had one.

        Args:
            deferred_sync: as for ``create_ledger``.

        Raises:
            LedgerHasWriter: it has, or had, a writer: recover it and create the next one.
            LedgerClosed, LedgerFenced, NoSuchLedger, Unauthorized: it cannot be written.
            MetadataOutcomeUnknown: it may be ours; the same call, of this client, settles it.
            MetadataConflict, MetadataUnavailable: it would not settle, or the store does not answer; not ours.
            DamagedFile, NewerFormat: its metadata cannot be decoded.
        """
        known = await self._read(ledger_id)
        self.authorise(known.value, password)
        # Taken out while it is used: of two calls at once only one may become the writer.
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
        bookies = choose_ensemble(
            await self._living(),
            quorum.ensemble,
            world.rng,
            write_quorum=quorum.write_quorum,
            quarantined=self._quarantine.now(world.clock.monotonic()),
            policy=self._settings.placement,
        )
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

    def _writer(self, metadata: LedgerMetadata, password: bytes, *, deferred_sync: bool = False) -> LedgerWriter:
        world = self.world
        if self._common is None:
            self._common = CommonWork(world.connections, world.clock, self._tasks, self._settings)
        context = WriterContext(
            self._common,
            self._spares,
            world.clock,
            self._tasks,
            self._settings,
            self._budget,
            world.tracer,
            self._deeds,
            self._limits,
            self._lifetime,
        )
        key, signing = _keys(metadata, password)
        update = partial(self._update, metadata.ledger_id)
        writer = LedgerWriter(metadata, context, update, key=key, digest_key=signing, deferred_sync=deferred_sync)
        self._keep(writer)
        return writer

    def _keep(self, writer: LedgerWriter) -> None:
        """Remember a writer while it is open. Those that have ended go whenever the list has doubled."""
        if len(self._writers) >= self._writers_limit:
            self._writers = [other for other in self._writers if not other.ended]
            self._writers_limit = max(2 * len(self._writers), 16)
        self._writers.append(writer)

    # -- reading ----------------------------------------------------------------------

    @while_open
    async def open_ledger(self, ledger_id: int, *, password: bytes = b"", recover: bool = True) -> LedgerReader:
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
        metadata = await self.ledger_metadata(ledger_id)
        self.authorise(metadata, password)
        if recover and not metadata.closed:
            metadata = await self.recover_ledger(ledger_id, password=password)
        _, signing = _keys(metadata, password)
        reader = LedgerReader(metadata, self._reader_context(), lac=metadata.last_entry_id, digest_key=signing)
        await reader.ask_last_add_confirmed()
        return reader

    def copying_reader(self, metadata: LedgerMetadata, *, archive_first: bool = False) -> LedgerReader:
        """A reader of a closed ledger for whoever copies it: it needs no password, and checks no HMAC.

        Args:
            archive_first: bookies are asked only for what the archive does not give.

        Raises:
            InvalidArgument: the ledger is not closed.
        """
        if not metadata.closed:
            raise InvalidArgument(f"ledger {metadata.ledger_id} is not closed, so nobody may copy it")
        return LedgerReader(metadata, self._reader_context(), lac=metadata.last_entry_id, archive_first=archive_first)

    @while_open
    async def recover_ledger(self, ledger_id: int, *, password: bytes = b"") -> LedgerMetadata:
        """Fence a ledger, find its end and close it; of a closed ledger, return the metadata.

        Raises:
            As ``open_ledger`` with ``recover``.
        """
        context, key, signing = await self._recovery(ledger_id, password)
        return await recover_ledger(context, key=key, digest_key=signing)

    async def recover_accepting_loss(
        self, ledger_id: int, *, password: bytes = b"", lost: Collection[str] = ()
    ) -> AcceptedLoss:
        """Recover a ledger; where that fails, close it after its last good copy. Confirmed entries may be lost then.

        For operators: what bookies hold that do not answer is given up only where they are named as ``lost``.

        Raises:
            As ``open_ledger`` with ``recover``. RecoveryFailed: a member that is not lost does not say what it holds.
        """
        context, key, signing = await self._recovery(ledger_id, password)
        return await recover_accepting_loss(context, key=key, digest_key=signing, lost=lost)

    async def _recovery(self, ledger_id: int, password: bytes) -> tuple[RecoveryContext, bytes, bytes | None]:
        """What a recovery of a ledger needs, its key, and the key of its digest."""
        world = self.world
        metadata = await self.ledger_metadata(ledger_id)
        self.authorise(metadata, password)
        key, signing = _keys(metadata, password)

        def reader_of(metadata: LedgerMetadata, last: int) -> LedgerReader:
            return LedgerReader(metadata, self._reader_context(), lac=last, digest_key=signing)

        update = partial(self._update, ledger_id)
        context = RecoveryContext(
            world.connections, self._spares, world.clock, world.rng, self._settings, update, reader_of, self._deeds
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
            self._deeds,
            self._lifetime,
        )

    # -- managing ---------------------------------------------------------------------

    @while_open
    async def ledger_metadata(self, ledger_id: int) -> LedgerMetadata:
        """The ledger's metadata as it is now.

        Raises:
            InvalidArgument: not a ledger id.
            NoSuchLedger: never created, or deleted.
            MetadataUnavailable: the store does not answer.
            DamagedFile, NewerFormat: they cannot be decoded.
        """
        return (await self._read(ledger_id)).value

    def list_ledgers(self) -> Listing[int]:
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

        return Listing(Steps(pages, partial(self._tasks.spawn, name="list"), self._lifetime))

    @while_open
    async def delete_ledger(self, ledger_id: int, *, password: bytes = b"", force: bool = False) -> None:
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
        """
        ledger = await self.ledger_metadata(ledger_id)
        self.authorise(ledger, password)
        use = None if force else await use_of(self.world.store, ledger)
        if use is not None:
            raise LedgerInUse(f"ledger {ledger_id} is {use}: delete or truncate the stream, or force the deletion")
        await self._updater.delete(ledger_id)

    def authorise(self, metadata: LedgerMetadata, password: bytes) -> None:
        """See that ``password`` is the one of the ledger, or that it needs none and none is given.

        Raises:
            Unauthorized: it is not.
        """
        key, _ = _keys(metadata, password)
        if password and not metadata.key_verifier:
            # Whoever gives one counts on it. The ledger may be another one than is meant.
            raise Unauthorized(f"ledger {metadata.ledger_id} has no password, but one was given")
        if metadata.key_verifier and not key_fits(key, metadata.key_verifier):
            raise Unauthorized(f"ledger {metadata.ledger_id}: the password does not fit")

    @while_open
    async def bookies(self) -> Mapping[str, BookieInfo]:
        """Live bookies by id.

        Raises:
            HandleClosed: the client is closed.
            MetadataUnavailable: the store does not answer.
            DamagedFile, NewerFormat: a registration cannot be decoded.
        """
        return await self._living()

    # -- inside -----------------------------------------------------------------------

    async def _living(self) -> Mapping[str, BookieInfo]:
        bookies = await self.world.membership.bookies()
        self._gone = frozenset(self._limits.keys() - bookies.keys())
        return bookies

    async def _read(self, ledger_id: int) -> Versioned:
        return await self.world.store.read_ledger(check_ledger_id(ledger_id), linearizable=True)

    async def _update(self, ledger_id: int, transition: Transition) -> Versioned:
        return await self._updater.update(ledger_id, transition)

    def _report_copy(self, bookie_id: str, ledger_id: int, entry_id: int, error: TallybookError) -> None:
        """Have the log say that a copy is bad: the first of a range, and how many more there were a second later."""
        untold = self._bad_copies.due(self.world.clock.monotonic(), (bookie_id, ledger_id, type(error)))
        if untold is not None:
            _log.warning(
                "bad copy",
                bookie_id=bookie_id,
                ledger_id=ledger_id,
                entry_id=entry_id,
                error=error.message,
                untold_count=untold,
            )

    @property
    def _spares(self) -> Spares:
        world = self.world
        return Spares(
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


def _keys(metadata: LedgerMetadata, password: bytes) -> tuple[bytes, bytes | None]:
    """The ledger key to show to bookies, and the key of the digest where it is an HMAC."""
    if not metadata.key_verifier:
        return b"", None
    signing = digest_key(password, metadata.key_salt) if metadata.digest is DigestType.HMAC_SHA256 else None
    return ledger_key(password, metadata.key_salt), signing
