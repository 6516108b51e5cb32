"""One bookie as a process, from start to clean stop.

    metadata -> boot the bookie on its disk -> gRPC and HTTP -> registered -> ready
    stop     -> not ready, deregistered -> no connections -> flushed, clean superblock -> done

A bookie that loses its registration keeps serving and registers again. One that can no longer keep its promises (a
failed sync, a dead essential task) ends at once through ``Process.fail_safe``. Nothing here runs per entry; metrics are
read from ``Bookie.readings`` on request.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import json
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from functools import partial
from typing import Final

from tallybook.core.access import OpenAccess
from tallybook.core.errors import InvalidConfig
from tallybook.core.settings import BookieSettings, StorageSettings
from tallybook.metadata.client import MetadataClient
from tallybook.metadata.metered_store import METADATA_METRICS
from tallybook.metadata.records.format import FIRST
from tallybook.metadata.records.restored_store import RestoreRecordStore
from tallybook.metadata.records.security_required import require_security
from tallybook.metadata.store import BookieInfo, BookieMode
from tallybook.metadata.uri import open_metadata
from tallybook.runtime.clock import RealClock
from tallybook.runtime.concurrency.backoff import with_drift
from tallybook.runtime.disk.directories import other_writer, permission_remedy
from tallybook.runtime.disk.os_disk import RealDisk
from tallybook.runtime.http.endpoints import HttpApi
from tallybook.runtime.http.server import HttpServer
from tallybook.runtime.listening import refuse_open_port
from tallybook.runtime.logging import add_to_every_line, logger
from tallybook.runtime.metrics.registry import Metrics
from tallybook.runtime.process import Process
from tallybook.runtime.process_memory.descriptors import raise_descriptor_limit
from tallybook.runtime.process_memory.idle_trim import trim_when_idle
from tallybook.runtime.rng import SystemRng
from tallybook.runtime.security.denial_log import DenialLog
from tallybook.runtime.security.in_flight import RequestsInFlight
from tallybook.runtime.security.server_security import security_of_server
from tallybook.runtime.tasks import Tasks, ThreadWorkers, run_until_set
from tallybook.runtime.tracing.catalog import TRACE_METRICS
from tallybook.runtime.tracing.opening import open_tracer
from tallybook.runtime.tracing.port import Tracer
from tallybook.runtime.tuning import settle_memory

from ..bookie import Bookie
from ..ledgers.confirmed_prefix import confirmed_prefix_of
from ..ledgers.disposition import disposition_of
from ..ledgers.key_verification import facts_of
from ..metrics import BOOKIE_METRICS
from ..recovery.limbo_count import named_ledgers
from ..rpc.service import METRICS as SERVICE_METRICS
from ..rpc.service import BookieService
from ..storage.index.rocksdb import IndexWorkers, RocksIndex
from .boot import boot
from .http_endpoints import BookieEndpoints
from .operator_modes import POLL_SECONDS, follow_mode, poll_mode
from .ports import BookiePorts, port_count, port_of, tcp_address
from .registration import BookieRegistration
from .world import BookieWorld

_log = logger("bookie.server")

METADATA_SECONDS: Final = 10.0
"""Deadline of one metadata operation."""

SWITCH_INTERVAL_SECONDS: Final = 1e-4
"""How long a computing thread may keep the interpreter from the journal thread."""

RUN_FILE: Final = "run.json"

OWN_DESCRIPTORS: Final = 512
"""File descriptors besides client connections and journal segments: index, entry logs, metadata, HTTP."""

MIN_CONNECTIONS: Final = 64
"""If fewer connections are possible, a bookie does not start."""


async def serve(settings: BookieSettings, stop: asyncio.Event, process: Process, ready: asyncio.Event) -> None:
    """Run one bookie until ``stop`` is set, then stop it cleanly. If ``stop`` is set early, it never becomes ready.

    Args:
        ready: set once the bookie serves; a later error is not a failed start.

    Raises:
        ForeignDirectory, DirectoryInUse, DiskFull, DamagedFile, InvalidConfig, MetadataUnavailable, ...:
            it cannot start; it changed nothing that would affect the next start.
        MetadataConflict: another process is registered under its id, at start or later; it has stopped cleanly.
    """
    for listen in filter(None, (settings.listen, tcp_address(settings))):
        refuse_open_port("a bookie", listen, security=settings.security, insecure=settings.insecure)
    refuse_open_directories(settings)
    sys.setswitchinterval(SWITCH_INTERVAL_SECONDS)
    max_connections = connections_within(settings, raise_descriptor_limit())
    async with AsyncExitStack() as undo:
        await _BookieProcess(fitting(settings, max_connections), max_connections, process, undo).run(stop, ready)


def connections_within(settings: BookieSettings, descriptors: int) -> int:
    """Maximum number of client connections, such that the bookie can always open its own files.

    Raises:
        InvalidConfig: fewer than ``MIN_CONNECTIONS`` for each port.
    """
    own = OWN_DESCRIPTORS + settings.journal.segment_count * max(1, len(settings.journal_directories))
    needed = own + port_count(settings) * MIN_CONNECTIONS
    if descriptors < needed:
        raise InvalidConfig(f"the limit of open files is {descriptors} (ulimit -n), and a bookie needs {needed}")
    return descriptors - own


def fitting(settings: BookieSettings, max_connections: int) -> BookieSettings:
    """The settings, with fewer streams if these need too many connections of one port.

    A quarter of a port's connections is for others.
    """
    wanted, fits = settings.admission.max_streams, max_connections // port_count(settings) * 3 // 4
    if wanted <= fits:
        return settings
    _log.warning(
        "fewer streams than configured", max_streams=fits, configured_count=wanted, connection_count=max_connections
    )
    return settings.model_copy(update={"admission": settings.admission.model_copy(update={"max_streams": fits})})


def refuse_open_directories(settings: BookieSettings) -> None:
    """Refuse directories in which other users may create files: entries, journals, or links to other files.

    Raises:
        InvalidConfig: there is one; the message says how to correct it.
    """
    for path in (settings.data_directory, *settings.journal_directories, *settings.ledger_directories):
        if who := other_writer(path):
            raise InvalidConfig(f"{who} may put files into {path}: {permission_remedy(path, who)}")


class IndexThreads:
    """Thread pools of the index and of checkpoints: readers, however many, delay no add, no fence and no checkpoint."""

    def __init__(self, read_threads: int) -> None:
        self.reads = ThreadWorkers(max(2, read_threads), "index-read")
        self.states = ThreadWorkers(2, "index-state")
        self.changes = ThreadWorkers(1, "checkpoint")
        self.maintenance = ThreadWorkers(1, "index-maintenance")

    async def open_index(
        self, disk: RealDisk, settings: StorageSettings, directory: str, *, create: bool
    ) -> RocksIndex:
        """Open the index with these threads."""
        workers = IndexWorkers(self.reads, self.states, self.changes, self.maintenance)
        return await RocksIndex.open(disk, directory, workers, settings, create=create)

    async def close(self) -> None:
        """Stop the threads after their current work."""
        for workers in (self.reads, self.states, self.changes, self.maintenance):
            await workers.close()


class _BookieProcess:
    """The parts of the process; each adds its cleanup to ``undo``, so that they end in reverse order."""

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
        self._bookie: Bookie | None = None
        self._why_not_ready: Callable[[], str | None] = lambda: "starting"

    async def run(self, stop: asyncio.Event, ready: asyncio.Event) -> None:
        """Start and serve until stopping begins; ``undo`` does the rest."""
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
        endpoints = BookieEndpoints(settings, self._readiness, lambda: self._bookie)
        names = (settings.advertise.rpartition(":")[0],) if settings.advertise else ()
        denials, in_flight = DenialLog(self._clock, security or OpenAccess()), RequestsInFlight()
        offer = HttpApi(endpoints.table(), hosts=names)
        http = HttpServer(metrics, self._readiness, security, offer, denials, in_flight)
        await http.start(settings.http_listen, self._tasks)
        undo.push_async_callback(http.close)
        metadata = await run_until_set(stop, self._open_metadata())
        if metadata is None:
            return
        undo.push_async_callback(metadata.close)
        if metadata.load is not None:
            metrics.add_part(METADATA_METRICS, metadata.load)
        bookie = await run_until_set(stop, self._boot(metadata))
        if bookie is None or stop.is_set():
            return
        self._bookie = bookie
        add_to_every_line(bookie_id=bookie.bookie_id)
        cluster_id = await metadata.store.cluster_id()
        fail_safe = self._process.fail_safe
        ports = BookiePorts(settings, self._max_connections, security, denials, in_flight, metrics)
        undo.push_async_callback(ports.close)
        service = BookieService(
            bookie,
            settings,
            self._clock,
            self._tasks,
            cluster_id,
            fail_safe,
            security,
            tracer,
            denials,
            in_flight,
            tcp_port=ports.tcp_port,
        )
        metrics.add(BOOKIE_METRICS.catalog, bookie.readings)
        metrics.add(SERVICE_METRICS.catalog, service.readings)
        grpc_address = await ports.open(service.accept)
        # Before registration, so that no client chooses a bookie that must not take writes.
        mode = await poll_mode(metadata.store, bookie.bookie_id, bookie.set_read_only)
        registration = BookieRegistration(
            metadata.membership,
            self._info(bookie, grpc_address, http.address),
            partial(_mode, bookie),
            self._free_bytes,
            self._clock,
            self._rng,
        )
        await registration.enter()
        undo.push_async_callback(registration.leave)
        await bookie.registered()
        interval_s = with_drift(self._rng, POLL_SECONDS)
        following = follow_mode(metadata.store, bookie.bookie_id, bookie.set_read_only, self._clock, mode, interval_s)
        self._tasks.spawn(following, name="mode", essential=True)
        # Before clients learn the address.
        self._why_not_ready = lambda: None if registration.listed else "not registered"
        await self._publish_run_file(bookie, {"grpc": port_of(grpc_address), "http": port_of(http.address)})
        await self._serve(bookie, grpc_address, stop, ready, registration)

    async def _serve(
        self, bookie: Bookie, address: str, stop: asyncio.Event, ready: asyncio.Event, registration: BookieRegistration
    ) -> None:
        """Be ready until the bookie is to stop."""
        settle_memory()
        self._tasks.spawn(trim_when_idle(self._clock, self._chores), name="memory")
        ready.set()
        _log.info("ready", bookie_id=bookie.bookie_id, address=address, boot=bookie.incarnation.boot)
        await self._until_stopped(stop, registration)
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
        """The reason that /readyz reports, or ``None`` if the bookie is ready."""
        return self._why_not_ready()

    def _info(self, bookie: Bookie, address: str, http_address: str) -> BookieInfo:
        """The data to register."""
        settings = self._settings
        return BookieInfo(
            bookie.bookie_id,
            settings.advertise or _reachable(address),
            bookie.incarnation,
            http_address=http_address,
            rack=settings.rack,
            version=importlib.metadata.version("tallybook"),
        )

    async def _free_bytes(self) -> int:
        """Free bytes where the next entry log will be created."""
        directories = self._settings.ledger_directories or (self._settings.data_directory,)
        return max([(await self._disk.space(directory)).free_bytes for directory in directories])

    async def _boot(self, metadata: MetadataClient) -> Bookie:
        settings, store = self._settings, metadata.store
        disk = self._disk
        threads = IndexThreads(settings.storage.read_threads)
        self._undo.push_async_callback(threads.close)

        async def open_index(directory: str, *, create: bool) -> RocksIndex:
            return await threads.open_index(disk, settings.storage, directory, create=create)

        world = BookieWorld(
            disk=disk,
            clock=self._clock,
            rng=self._rng,
            tasks=self._tasks,
            workers=threads.changes,
            open_index=open_index,
            facts_of=partial(facts_of, store),
            disposition_of=partial(disposition_of, store),
            id_counter=store.id_counter,
            confirmed_prefix_of=partial(confirmed_prefix_of, store),
            registry=store,
            fail_safe=self._process.fail_safe,
            named=partial(named_ledgers, store),
            behind=RestoreRecordStore(store, self._clock, self._rng),
        )
        bookie = await boot(settings, world)
        self._undo.push_async_callback(bookie.close)
        # Before registration: once the bookie can be in an ensemble, ids of ledgers that it holds must not be assigned.
        await bookie.compare_store()
        return bookie

    async def _until_stopped(self, stop: asyncio.Event, registration: BookieRegistration) -> None:
        """Wait for the signal, or until another process has registered under this bookie's id."""
        stopping = self._tasks.spawn(stop.wait(), name="stop")
        keeping = self._tasks.spawn(registration.keep(), name="registration")
        try:
            await asyncio.wait((stopping, keeping), return_when=asyncio.FIRST_COMPLETED)
            if keeping.done():
                await keeping
        finally:
            # Otherwise it would register again after ``leave``.
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)

    async def _publish_run_file(self, bookie: Bookie, ports: Mapping[str, int]) -> None:
        """Write the address and ports of this process for scripts and ``tallybook up``; removed by a clean stop."""
        path = f"{self._settings.data_directory.rstrip('/')}/{RUN_FILE}"
        facts = {"format": FIRST, "pid": os.getpid(), "ports": dict(ports), "bookie_id": bookie.bookie_id}
        await self._disk.replace_file(path, json.dumps(facts).encode())
        self._undo.push_async_callback(self._disk.unlink, path)

    def _essential_task_died(self, name: str, error: BaseException) -> None:
        self._process.fail_safe(f"essential task {name} died: {error!r}")


def _mode(bookie: Bookie) -> BookieMode:
    return BookieMode.READ_ONLY if bookie.read_only else BookieMode.WRITABLE


def _reachable(address: str) -> str:
    """The address listened on, if clients can use it.

    Raises:
        InvalidConfig: it is a wildcard address.
    """
    host = address.rpartition(":")[0].strip("[]")
    if host in ("0.0.0.0", "::", "*", ""):  # noqa: S104 (told apart, not bound)
        raise InvalidConfig(f"listening on {address}: set 'advertise' to the address that clients must use")
    return address
