"""One bookie as a process: everything real, put together, from the start to the clean stop.

    metadata -> boot the bookie on its disk -> gRPC and HTTP -> registered -> ready
    stop     -> not ready, not registered -> no connections -> flushed, clean superblock -> done

A bookie that loses its registration serves on and registers again. One that can no longer
keep its promises (a failed sync, a dead essential task) ends through ``Process.fail_safe``,
at once. Nothing here runs per entry; metrics are read off ``Bookie.stats`` when asked for.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from functools import partial
from typing import Final

from tallybook.core.access import OpenAccess
from tallybook.core.config import BookieSettings, StorageSettings
from tallybook.core.errors import InvalidConfig
from tallybook.metadata.behind import BehindRecord
from tallybook.metadata.client import MetadataClient
from tallybook.metadata.metered import METADATA_METRICS
from tallybook.metadata.record_format import FIRST
from tallybook.metadata.secured import require_security
from tallybook.metadata.store import BookieInfo, BookieMode
from tallybook.metadata.uri import open_metadata
from tallybook.runtime.clock import RealClock
from tallybook.runtime.descriptors import raise_descriptor_limit
from tallybook.runtime.directories import how_to_close, other_writer
from tallybook.runtime.disk_real import RealDisk
from tallybook.runtime.grpc_load import GRPC_METRICS, GrpcLoad
from tallybook.runtime.grpc_transport import GrpcTransport
from tallybook.runtime.http import HttpServer, refuse_open_port
from tallybook.runtime.http_api import Offer
from tallybook.runtime.logging import add_to_every_line, logger
from tallybook.runtime.metrics import Metrics
from tallybook.runtime.open_tracing import open_tracer
from tallybook.runtime.process import Process
from tallybook.runtime.quiet_memory import give_back_when_quiet
from tallybook.runtime.refusals import Refusals
from tallybook.runtime.rng import SystemRng
from tallybook.runtime.security import security_of_server
from tallybook.runtime.span_catalogue import TRACE_METRICS
from tallybook.runtime.tasks import Tasks, ThreadWorkers, unless_set
from tallybook.runtime.tracing import Tracer
from tallybook.runtime.tuning import settle_memory
from tallybook.runtime.under_way import UnderWay

from .bookie import Bookie
from .boot import BookieWorld, boot
from .endpoints import BookieEndpoints
from .enrolment import Enrolment
from .fates import fate_of
from .limbo_count import named_ledgers
from .metrics import BOOKIE_METRICS
from .modes import follow_mode, look_at_mode
from .service import BookieService
from .settled import closed_up_to
from .storage.index_rocks import IndexWorkers, RocksIndex
from .verifiers import facts_of

_log = logger("bookie.server")

METADATA_SECONDS: Final = 10.0
"""Deadline of one metadata operation."""

GRACE_SECONDS: Final = 0.2
"""How long streams may finish what they are sending when the bookie stops."""

SWITCH_INTERVAL_SECONDS: Final = 1e-4
"""How long a thread that computes keeps the interpreter from the journal thread."""

RUN_FILE: Final = "run.json"

OWN_DESCRIPTORS: Final = 512
"""Files and connections besides those of clients and the journals' segments: index, entry logs, metadata, HTTP."""

LEAST_CONNECTIONS: Final = 64
"""With room for fewer, a bookie does not start."""


async def serve(settings: BookieSettings, stop: asyncio.Event, process: Process, ready: asyncio.Event) -> None:
    """Run one bookie until ``stop`` is set, then stop it cleanly; where it is not ready by then, it never becomes so.

    Args:
        ready: set once the bookie serves; an error after that is no refusal to start.

    Raises:
        ForeignDirectory, DirectoryInUse, DiskFull, DamagedFile, InvalidConfig, MetadataUnavailable, ...:
            it cannot start; nothing was changed that the next start would trip over.
        MetadataConflict: another process is registered under its id, now or while it ran; it has stopped cleanly.
    """
    refuse_open_port("a bookie", settings.listen, security=settings.security, insecure=settings.insecure)
    refuse_open_directories(settings)
    sys.setswitchinterval(SWITCH_INTERVAL_SECONDS)
    max_connections = connections_within(settings, raise_descriptor_limit())
    async with AsyncExitStack() as undo:
        await _Server(fitting(settings, max_connections), max_connections, process, undo).run(stop, ready)


def connections_within(settings: BookieSettings, descriptors: int) -> int:
    """How many connections of clients there may be, so that the bookie can always open the files it needs.

    Raises:
        InvalidConfig: next to none.
    """
    own = OWN_DESCRIPTORS + settings.journal.segment_count * max(1, len(settings.journal_directories))
    if descriptors - own < LEAST_CONNECTIONS:
        needed = own + LEAST_CONNECTIONS
        raise InvalidConfig(f"{descriptors} files may be open at once (ulimit -n), and a bookie needs {needed}")
    return descriptors - own


def fitting(settings: BookieSettings, max_connections: int) -> BookieSettings:
    """The settings, with fewer streams if that many need more connections; a quarter is for those without streams."""
    wanted, fits = settings.admission.max_streams, max_connections * 3 // 4
    if wanted <= fits:
        return settings
    _log.warning(
        "fewer streams than configured", max_streams=fits, configured_count=wanted, connection_count=max_connections
    )
    return settings.model_copy(update={"admission": settings.admission.model_copy(update={"max_streams": fits})})


def refuse_open_directories(settings: BookieSettings) -> None:
    """Refuse directories where other users may put files: entries, journals, or links to files of others.

    Raises:
        InvalidConfig: one is; the message says how to mend it.
    """
    for path in (settings.data_directory, *settings.journal_directories, *settings.ledger_directories):
        if who := other_writer(path):
            raise InvalidConfig(f"{who} may put files into {path}: {how_to_close(path, who)}")


class IndexThreads:
    """Threads of the index and of checkpoints: readers, however many, hold up no add, no fence and no checkpoint."""

    def __init__(self, read_threads: int) -> None:
        self.reads = ThreadWorkers(max(2, read_threads), "index-read")
        self.states = ThreadWorkers(2, "index-state")
        self.changes = ThreadWorkers(1, "checkpoint")
        self.upkeep = ThreadWorkers(1, "index-upkeep")

    async def open_index(
        self, disk: RealDisk, directory: str, settings: StorageSettings, *, create: bool
    ) -> RocksIndex:
        """Open the index over these threads."""
        workers = IndexWorkers(self.reads, self.states, self.changes, self.upkeep)
        return await RocksIndex.open(disk, directory, workers, settings, create=create)

    async def close(self) -> None:
        """End them, after what they do now."""
        for workers in (self.reads, self.states, self.changes, self.upkeep):
            await workers.close()


class _Server:
    """The parts of the process; each registers with ``undo`` how it ends, so that they end in reverse order."""

    def __init__(self, settings: BookieSettings, max_connections: int, process: Process, undo: AsyncExitStack) -> None:
        self._settings = settings
        self._max_connections = max_connections
        self._process = process
        self._undo = undo
        self._clock = RealClock()
        self._rng = SystemRng()
        self._disk = RealDisk(direct=settings.direct_io, read_threads=settings.storage.read_threads)
        self._tasks = Tasks("bookie", self._essential_task_died)
        self._chores = ThreadWorkers(1, "memory")
        self._why_not_ready: Callable[[], str | None] = lambda: "starting"

    async def run(self, stop: asyncio.Event, ready: asyncio.Event) -> None:
        """From the start to the moment when stopping begins; ``undo`` does the rest."""
        await self._run(stop, ready)
        if not ready.is_set():
            _log.info("stopped before it was ready")

    async def _run(self, stop: asyncio.Event, ready: asyncio.Event) -> None:
        undo, settings, metrics = self._undo, self._settings, Metrics()
        undo.push_async_callback(self._disk.close)
        undo.push_async_callback(self._chores.close)
        undo.push_async_callback(self._tasks.close)
        tracer = self._open_tracer(metrics)
        security = security_of_server(settings.security, self._clock, self._tasks, metrics)
        endpoints = BookieEndpoints(settings, self._readiness)
        names = (settings.advertise.rpartition(":")[0],) if settings.advertise else ()
        refusals, under_way = Refusals(self._clock, security or OpenAccess()), UnderWay()
        load = GrpcLoad()
        offer = Offer(endpoints.table(), hosts=names)
        http = HttpServer(metrics, self._readiness, security, offer, refusals, under_way)
        await http.start(settings.http_listen, self._tasks)
        undo.push_async_callback(http.close)
        metadata = await unless_set(stop, self._open_metadata())
        if metadata is None:
            return
        undo.push_async_callback(metadata.close)
        if metadata.load is not None:
            metrics.add(METADATA_METRICS, metadata.load.readings)
        bookie = await unless_set(stop, self._boot(metadata))
        if bookie is None or stop.is_set():
            return
        add_to_every_line(bookie_id=bookie.bookie_id)
        endpoints.bookie = bookie
        cluster_id = await metadata.store.cluster_id()
        fail_safe = self._process.fail_safe
        service = BookieService(
            bookie, settings, self._clock, self._tasks, cluster_id, fail_safe, security, tracer, refusals, under_way
        )
        metrics.add(BOOKIE_METRICS, lambda: {**bookie.readings(), **service.readings()})
        transport = GrpcTransport(
            max_streams=settings.admission.max_streams,
            max_connections=self._max_connections,
            security=security,
            refusals=refusals,
            under_way=under_way,
            load=load,
        )
        metrics.add(GRPC_METRICS, load.readings)
        listener = await transport.listen(settings.listen, service.accept)
        undo.push_async_callback(listener.close, GRACE_SECONDS)
        # Before it is listed: whoever is to take no writes is never chosen for any.
        mode = await look_at_mode(metadata.store, bookie.bookie_id, bookie.set_read_only)
        enrolment = Enrolment(
            metadata.membership,
            self._info(bookie, listener.address, http.address),
            partial(_mode, bookie),
            self._free_bytes,
            self._clock,
        )
        await enrolment.enter()
        undo.push_async_callback(enrolment.leave)
        await bookie.enrolled()
        self._tasks.spawn(
            follow_mode(metadata.store, bookie.bookie_id, bookie.set_read_only, self._clock, mode),
            name="mode",
            essential=True,
        )
        # Before it is told where to ask.
        self._why_not_ready = lambda: None if enrolment.listed else "not registered"
        await self._publish_run_file(bookie, {"grpc": _port(listener.address), "http": _port(http.address)})
        await self._serve(bookie, listener.address, stop, ready, enrolment)

    async def _serve(
        self, bookie: Bookie, address: str, stop: asyncio.Event, ready: asyncio.Event, enrolment: Enrolment
    ) -> None:
        """Be ready until it is to stop."""
        settle_memory()
        self._tasks.spawn(give_back_when_quiet(self._clock, self._chores), name="memory")
        ready.set()
        _log.info("ready", bookie_id=bookie.bookie_id, address=address, boot=bookie.incarnation.boot)
        await self._until_stopped(stop, enrolment)
        self._why_not_ready = lambda: "stopping"
        _log.info("stopping", bookie_id=bookie.bookie_id)

    async def _open_metadata(self) -> MetadataClient:
        metadata = await open_metadata(
            self._settings.metadata,
            create=True,
            clock=self._clock,
            rng=self._rng,
            timeout_seconds=METADATA_SECONDS,
            security=self._settings.security,
        )
        try:
            if self._settings.security:
                await require_security(metadata.store, self._clock, self._rng)
        except BaseException:
            await metadata.close()
            raise
        return metadata

    def _open_tracer(self, metrics: Metrics) -> Tracer:
        tracer = open_tracer(self._settings.traces, "tallybook-bookie", security=self._settings.security)
        self._undo.push_async_callback(tracer.close)
        metrics.add(TRACE_METRICS, tracer.readings)
        return tracer

    def _readiness(self) -> str | None:
        """What /readyz says: nothing, or why this bookie is not ready."""
        return self._why_not_ready()

    def _info(self, bookie: Bookie, address: str, http_address: str) -> BookieInfo:
        """What the bookie registers."""
        settings = self._settings
        return BookieInfo(
            bookie.bookie_id,
            settings.advertise or _reachable(address),
            bookie.incarnation,
            http_address=http_address,
            rack=settings.rack,
        )

    async def _free_bytes(self) -> int:
        """Where the next entry log will go."""
        directories = self._settings.ledger_directories or (self._settings.data_directory,)
        return max([(await self._disk.space(directory)).free_bytes for directory in directories])

    async def _boot(self, metadata: MetadataClient) -> Bookie:
        settings, store = self._settings, metadata.store
        disk = self._disk
        threads = IndexThreads(settings.storage.read_threads)
        self._undo.push_async_callback(threads.close)

        async def open_index(directory: str, create: bool) -> RocksIndex:
            return await threads.open_index(disk, directory, settings.storage, create=create)

        world = BookieWorld(
            disk=disk,
            clock=self._clock,
            rng=self._rng,
            tasks=self._tasks,
            workers=threads.changes,
            open_index=open_index,
            facts_of=partial(facts_of, store),
            fate_of=partial(fate_of, store),
            id_counter=store.id_counter,
            closed_up_to=partial(closed_up_to, store),
            registry=store,
            fail_safe=self._process.fail_safe,
            named=partial(named_ledgers, store),
            behind=BehindRecord(store, self._clock, self._rng),
        )
        bookie = await boot(settings, world)
        self._undo.push_async_callback(bookie.close)
        # Before it is registered: the ids of what it holds are handed out no more once it can be in an ensemble.
        await bookie.compare_store()
        return bookie

    async def _until_stopped(self, stop: asyncio.Event, enrolment: Enrolment) -> None:
        """Wait for the signal, or until somebody else has taken this bookie's place."""
        stopping = self._tasks.spawn(stop.wait(), name="stop")
        keeping = self._tasks.spawn(enrolment.keep(), name="enrolment")
        try:
            await asyncio.wait((stopping, keeping), return_when=asyncio.FIRST_COMPLETED)
            if keeping.done():
                await keeping
        finally:
            # Or it would register again what leaves from here on.
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)

    async def _publish_run_file(self, bookie: Bookie, ports: Mapping[str, int]) -> None:
        """Say, for scripts and for ``tallybook up``, how to reach this process; gone again when it stops cleanly."""
        path = f"{self._settings.data_directory.rstrip('/')}/{RUN_FILE}"
        facts = {"format": FIRST, "pid": os.getpid(), "ports": dict(ports), "bookie_id": bookie.bookie_id}
        await self._disk.replace_file(path, json.dumps(facts).encode())
        self._undo.push_async_callback(self._disk.unlink, path)

    def _essential_task_died(self, name: str, error: BaseException) -> None:
        self._process.fail_safe(f"essential task {name} died: {error!r}")


def _mode(bookie: Bookie) -> BookieMode:
    return BookieMode.READ_ONLY if bookie.read_only else BookieMode.WRITABLE


def _reachable(address: str) -> str:
    """The address listened on, if clients can be told it.

    Raises:
        InvalidConfig: it stands for every interface of this machine.
    """
    host = address.rpartition(":")[0].strip("[]")
    if host in ("0.0.0.0", "::", "*", ""):  # noqa: S104 (told apart, not bound)
        raise InvalidConfig(f"listening on {address}: say with 'advertise' which address clients are to use")
    return address


def _port(address: str) -> int:
    return int(address.rpartition(":")[2])
