"""A bookie of a simulated cluster: the production bookie on a simulated disk, through all restarts.

    node.start()                 boot, listen, register; as ``bookie/process/server`` does in production
    node.kill(), lose_power()    end the process, or the machine; it starts again after a while
    node.wipe()                  replace the disk by an empty one: the bookie must refuse to start until it is replaced

Each life starts from the disk alone. If a life ends by itself (fail-safe, refused start), the next one follows, as with
a supervisor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

from tallybook.bookie.bookie import Bookie
from tallybook.bookie.directories.layout import replace_identity
from tallybook.bookie.ledgers.confirmed_prefix import confirmed_prefix_of
from tallybook.bookie.ledgers.disposition import disposition_of
from tallybook.bookie.ledgers.key_verification import facts_of
from tallybook.bookie.process.boot import boot
from tallybook.bookie.process.operator_modes import follow_mode, poll_mode
from tallybook.bookie.process.registration import BookieRegistration
from tallybook.bookie.process.world import BookieWorld
from tallybook.bookie.recovery.limbo_count import named_ledgers
from tallybook.bookie.rpc.service import BookieService
from tallybook.bookie.storage.entry_log.format import parse_log_name
from tallybook.bookie.storage.index.port import Index
from tallybook.bookie.storage.index.survey import RowKey
from tallybook.bookie.storage.location import IndexRow
from tallybook.core.errors import (
    DamagedFile,
    DiskFailed,
    DiskFull,
    EntryUnknown,
    ForeignDirectory,
    MetadataConflict,
    MetadataOutcomeUnknown,
    MetadataUnavailable,
    TallybookError,
    is_defect,
)
from tallybook.core.settings import BookieSettings
from tallybook.metadata.records.bookie_modes import RequestedMode
from tallybook.metadata.records.replaced_bookies import record_replacement
from tallybook.metadata.records.restored_store import RestoreRecordStore, ids_below, read_restore_record
from tallybook.metadata.store import BookieInfo, BookieMode, MetadataStore
from tallybook.runtime.rng import Rng
from tallybook.runtime.tasks import InlineWorkers, Tasks

from ..deterministic import Latency, SimClock, SimDisk
from ..memory_bookie.index import MemoryIndex
from ..oracle.injected_damage import BatchKey, InjectedDamage
from ..oracle.observed_bookie import ObservedBookie
from ..stage.left_disk import truncated_logs
from .process import SimEnvironment, SimProcess

PORT: Final = 3181


class _WatchedIndex(MemoryIndex):
    """A memory index that reports dropped ledgers and lists the batches of an entry log."""

    on_left: Callable[[int], None]

    def in_log(self, path: str) -> list[BatchKey]:
        """Batches whose rows point into this file; empty unless it is an entry log."""
        log_id = parse_log_name(path.rpartition("/")[2])
        return [key for key, location in self._locations.items() if location.log_id == log_id]

    async def apply(
        self,
        rows: Sequence[IndexRow],
        states: Mapping[int, bytes],
        *,
        drop_ledgers: Sequence[int] = (),
        drop_rows: Sequence[int] = (),
        drop_keys: Sequence[RowKey] = (),
        frees_space: bool = False,
    ) -> None:
        """See the port."""
        for ledger_id in drop_rows:
            self.on_left(ledger_id)
        await super().apply(
            rows, states, drop_ledgers=drop_ledgers, drop_rows=drop_rows, drop_keys=drop_keys, frees_space=frees_space
        )


METADATA_ERRORS: Final = (MetadataUnavailable, MetadataConflict, MetadataOutcomeUnknown)
"""Errors with which a bookie may end when the metadata store is unavailable."""

DISK_ERRORS: Final = ("DiskFailed", "DiskFull")
"""Errors that excuse a fail-safe: its reason must name one of them."""


class BookieNode:
    """One bookie id with its disk, through all lives.

    Args:
        latency: of its disk.
        restart_seconds: pause before a process that ended by itself is restarted.
        has_operator: whether the nemesis may drain it through its wanted mode.
    """

    def __init__(
        self,
        name: str,
        settings: BookieSettings,
        env: SimEnvironment,
        *,
        latency: Latency,
        capacity_bytes: int,
        restart_seconds: float,
        has_operator: bool,
    ) -> None:
        self.name = name
        self.settings = settings
        self.clock = SimClock()
        self.latency = latency
        self.capacity_bytes = capacity_bytes
        self.process: SimProcess | None = None
        self.bookie: Bookie | None = None
        self._struck = False
        """A disk fault that was removed meanwhile had struck in this life."""
        self._short_of_disk = False
        """Whether its disk was full at some moment of this life."""
        self.memory_fails = False
        """Whether reads return corrupted copies."""
        self._env = env
        self._rng = env.rng.fork(name)
        self._restart_seconds = restart_seconds
        self._has_operator = has_operator
        self._lives = 0
        self._registered = False
        self._to_replace = False
        self._blank = True
        """Whether it has not served from its present disk yet, which was empty at first."""
        self._directory_uuid = ""
        """Uuid of the directory that served last."""
        self.tasks: Tasks | None = None
        self.service: BookieService | None = None
        self.disk = self._new_disk()

    @property
    def damaged(self) -> bool:
        """Whether a fault damaged its present directory, so that it may refuse to start."""
        return self._injected is not None

    @property
    def _injected(self) -> InjectedDamage | None:
        return self._env.oracle.injected_damage.of(self._directory_uuid)

    @property
    def excused(self) -> bool:
        """Whether an injected disk fault struck in this life, so that it may give up."""
        return self._struck or any(fault.error and fault.seen >= fault.nth for fault in self.disk.faults)

    @property
    def ready(self) -> bool:
        """Whether it is serving."""
        return self.bookie is not None

    @property
    def empty(self) -> bool:
        """Whether its disk is lost and it waits for ``bookie init --replace``."""
        return self._to_replace

    def start(self) -> None:
        """Begin a life, unless one is running."""
        if self.process is not None:
            return
        self._lives += 1
        env = self._env
        rng = self._rng.fork(f"life {self._lives}")
        self.process = SimProcess(self.name, env, self.clock, rng)
        self._struck = False
        self._short_of_disk = self.disk.capacity_bytes < self.capacity_bytes
        self.process.spawn(self._live(self.process))

    def start_in(self, seconds: float) -> None:
        """Begin the next life after ``seconds``, unless one has begun by then."""
        self._env.metadata.later(seconds, self.start)

    def kill(self, down_seconds: float = 0.0) -> None:
        """Kill the process: written data stay, memory is lost. It restarts after ``down_seconds``."""
        if self._end():
            self.disk = self.disk.fork()
        self.start_in(down_seconds)

    def lose_power(self, down_seconds: float = 0.0) -> None:
        """Power off the machine: writes that were not durable are lost, kept or torn at random."""
        self._end(silent=True)
        self.disk = self.disk.lose_power(self._rng.fork(f"power {self._lives}"))
        self.start_in(down_seconds)

    def wipe(self, down_seconds: float = 0.0) -> None:
        """Restart the machine with an empty disk."""
        self._end(silent=True)
        self._lose_all()
        self.start_in(down_seconds)

    def damage(self, path: str, first: int, last: int) -> None:
        """Record that a fault changes sectors ``first .. last`` of a file while the bookie serves."""
        if self.bookie is not None:
            batches = self._index.in_log(path)
            self._env.oracle.injected_damage.damage(self.name, self.bookie.incarnation, path, first, last, batches)

    def fill_disk(self, left_bytes: int) -> None:
        """Leave only ``left_bytes`` of free space on the disk."""
        self.disk.capacity_bytes = self.disk.state.used_bytes() + left_bytes
        self._short_of_disk = True

    def free_disk(self) -> None:
        """Remove planned faults and restore the capacity of the disk."""
        self._struck = self.excused
        self.disk.faults.clear()
        self.disk.capacity_bytes = self.capacity_bytes

    def _lose_all(self) -> None:
        self._env.oracle.injected_damage.lose(self.name, self._directory_uuid)
        self.disk = self._new_disk()
        self._blank = True

    def _new_disk(self) -> SimDisk:
        return SimDisk(
            self._rng.fork(f"disk {self._lives}"),
            latency=self.latency,
            capacity_bytes=self.capacity_bytes,
            name=f"disk {self.name}",
        )

    def _end(self, *, silent: bool = False) -> bool:
        process, self.process, self.bookie, self.service = self.process, None, None, None
        if process is None:
            return False
        if self.disk.state.cuts_without_name():
            self._env.oracle.mark("bookie: ends while a removed log is truncated")
        process.kill(silent=silent)
        return True

    def _exit(self, reason: str) -> None:
        """End the process from inside; the supervisor restarts it."""
        self._env.note(self.name, "exits", reason)
        self.kill(self._restart_seconds)

    async def _live(self, process: SimProcess) -> None:
        """Run one life, from boot to its end."""
        try:
            await self._serve(process)
        except TallybookError as error:
            if process is self.process:
                self._refused(error)
        except Exception as error:  # noqa: BLE001 - any undeclared error of a bookie is a defect
            self._env.oracle.violated("defect", f"{self.name} met {error!r}")

    def _refused(self, error: TallybookError) -> None:
        """Check that the error with which the bookie ended is allowed, and let it restart."""
        oracle = self._env.oracle
        if is_defect(error):
            oracle.violated("defect", f"{self.name} cannot go on: {error!r}")
        elif isinstance(error, ForeignDirectory):
            oracle.expect(self._blank, "boot", f"{self.name} refuses its own directory: {error.message}")
            self._to_replace = True
        elif isinstance(error, DamagedFile):
            harmed = self._injected is not None and self._injected.explains_refusal(error.message)
            oracle.expect(harmed, "boot", f"{self.name} finds damage that no fault caused: {error.message}")
            oracle.mark("bookie: refused to start on a damaged file")
            self._lose_all()
            self._to_replace = True
        elif isinstance(error, DiskFull):
            oracle.expect(self._short_of_disk or self.excused, "boot", f"{self.name}: {error.message}")
        elif isinstance(error, (DiskFailed, EntryUnknown)):
            oracle.expect(self.excused, "boot", f"{self.name}: {error.message}")
        else:
            allowed = isinstance(error, METADATA_ERRORS)
            oracle.expect(allowed, "boot", f"{self.name} ends with an error that is no reason to end: {error!r}")
        self._exit(repr(error))

    def _fail_safe(self, process: SimProcess, reason: str) -> None:
        if process is not self.process:
            return
        oracle = self._env.oracle
        oracle.mark("bookie: fail-safe")
        excused = self.excused and any(name in reason for name in DISK_ERRORS)
        oracle.expect(excused, "fail-safe", f"{self.name} gives up without a reason: {reason}")
        self._exit(reason)

    async def _serve(self, process: SimProcess) -> None:
        """Boot, listen and register, as ``bookie/process/server`` does."""
        store, membership, oracle = process.session.store, process.session.membership, self._env.oracle
        if self._to_replace:
            await self._replace(store, process.rng)
        fail_safe = partial(self._fail_safe, process)
        tasks = self.tasks = Tasks(self.name, lambda name, error: fail_safe(f"task {name} died: {error!r}"))
        world = BookieWorld(
            disk=self.disk,
            clock=self.clock,
            rng=process.rng,
            tasks=tasks,
            workers=InlineWorkers(),
            open_index=self._open_index,
            facts_of=partial(facts_of, store),
            disposition_of=partial(disposition_of, store),
            id_counter=store.id_counter,
            confirmed_prefix_of=partial(confirmed_prefix_of, store),
            registry=store,
            fail_safe=fail_safe,
            named=partial(named_ledgers, store),
            behind=RestoreRecordStore(store, self.clock, process.rng.fork("behind")),
        )
        bookie = await boot(self.settings, world)
        oracle.expect(bool(self.disk.state.directories), "boot", f"{self.name} has booted from nothing")
        short = [] if self.damaged else truncated_logs(self.disk, bookie)
        oracle.expect(not short, "boot", f"{self.name} finds entry logs that are too short: {short}")
        uuid = bookie.incarnation.directory_uuid
        same = uuid == self._directory_uuid
        oracle.expect(same or self._blank, "boot", f"{self.name} starts with another uuid, and had lost nothing")
        self._directory_uuid, self._blank = uuid, False
        observed = ObservedBookie(bookie, oracle, lambda: self.memory_fails)
        service = BookieService(observed, self.settings, self.clock, tasks, await store.cluster_id(), fail_safe)
        listener = await process.transport.listen(f"{self.name}:{PORT}", service.accept)
        info = BookieInfo(self.name, listener.address, bookie.incarnation)
        mode = RequestedMode.NORMAL
        if self._has_operator:
            mode = await poll_mode(store, self.name, bookie.set_read_only)
        registration = BookieRegistration(
            membership, info, partial(_mode, bookie), self._free_bytes, self.clock, self._rng.fork("registration")
        )
        await bookie.compare_store()
        await registration.enter()
        await bookie.registered()
        if self._has_operator:
            following = follow_mode(store, self.name, bookie.set_read_only, self.clock, mode)
            tasks.spawn(following, name="mode", essential=True)
        self.bookie, self.service = bookie, service
        if not self._registered:
            self._registered = True
        else:
            await oracle.restarted(self.name, bookie, lambda: self.excused)
        self._env.note(self.name, "serves", bookie.incarnation.directory_uuid, bookie.incarnation.boot)
        await registration.keep()

    async def _replace(self, store: MetadataStore, rng: Rng) -> None:
        """Run ``bookie init --replace``; the next boot completes one that was interrupted."""
        oracle = self._env.oracle
        oracle.expect(self._blank, "boot", f"{self.name} is replaced although it lost nothing")
        try:
            await replace_identity(
                self.settings,
                self.disk,
                store,
                rng,
                partial(ids_below, store.id_counter, partial(read_restore_record, store)),
                note=partial(record_replacement, store),
            )
        except ForeignDirectory:
            oracle.mark("bookie: replacement found finished")
        self._to_replace = False
        oracle.mark("bookie: replaced")

    async def _open_index(self, directory: str, *, create: bool) -> Index:
        index = await _WatchedIndex.open(self.disk, directory, create=create)
        index.on_left = partial(self._env.oracle.copies_dropped, self.name)
        self._index = index
        return index

    async def _free_bytes(self) -> int:
        return (await self.disk.space(self.settings.data_directory)).free_bytes


def _mode(bookie: Bookie) -> BookieMode:
    return BookieMode.READ_ONLY if bookie.read_only else BookieMode.WRITABLE


def with_name(settings: BookieSettings, name: str) -> BookieSettings:
    """The same settings for the bookie called ``name``."""
    return settings.model_copy(update={"bookie_id": name})
