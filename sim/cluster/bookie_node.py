"""One bookie of a simulated cluster: the real one, on a simulated disk, through all its lives.

    node.start()                 boot, listen, register; what ``bookie/server`` does in production
    node.kill(), lose_power()    the process, or the machine, is gone; it starts again after a while
    node.wipe()                  the directory comes back empty: it must refuse to start until it is replaced

Every life begins from the disk alone. A life that ends by itself (a fail-safe, a refused
start) is followed by another one, as a supervisor would do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

from tallybook.bookie.bookie import Bookie
from tallybook.bookie.boot import BookieWorld, boot
from tallybook.bookie.directories import replace_identity
from tallybook.bookie.enrolment import Enrolment
from tallybook.bookie.fates import fate_of
from tallybook.bookie.limbo_count import named_ledgers
from tallybook.bookie.modes import follow_mode, look_at_mode
from tallybook.bookie.service import BookieService
from tallybook.bookie.settled import closed_up_to
from tallybook.bookie.storage.entry_log_format import parse_log_name
from tallybook.bookie.storage.index import Index
from tallybook.bookie.storage.index_memory import MemoryIndex
from tallybook.bookie.storage.location import IndexRow
from tallybook.bookie.storage.told import RowKey
from tallybook.bookie.verifiers import facts_of
from tallybook.core.config import BookieSettings
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
from tallybook.metadata.behind import BehindRecord, ids_below, read_behind
from tallybook.metadata.bookie_modes import WantedMode
from tallybook.metadata.replaced import note_replaced
from tallybook.metadata.store import BookieInfo, BookieMode, MetadataStore
from tallybook.runtime.deterministic import Latency, SimClock, SimDisk
from tallybook.runtime.rng import Rng
from tallybook.runtime.tasks import InlineWorkers, Tasks

from .harm import BatchKey, Harm
from .observed import ObservedBookie
from .process import SimProcess, Surroundings
from .stage.left_disk import logs_cut_short

PORT: Final = 3181


class _WatchedIndex(MemoryIndex):
    """One that tells of the ledgers of which all rows go, and what lies in a log."""

    on_left: Callable[[int], None]

    def in_log(self, path: str) -> list[BatchKey]:
        """The batches that have their rows in this file, if it is an entry log."""
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
        makes_room: bool = False,
    ) -> None:
        """See the port."""
        for ledger_id in drop_rows:
            self.on_left(ledger_id)
        await super().apply(
            rows, states, drop_ledgers=drop_ledgers, drop_rows=drop_rows, drop_keys=drop_keys, makes_room=makes_room
        )


METADATA_ERRORS: Final = (MetadataUnavailable, MetadataConflict, MetadataOutcomeUnknown)
"""With these a bookie ends when the metadata store does not let it start, or go on."""

DISK_ERRORS: Final = ("DiskFailed", "DiskFull")
"""A fail-safe whose reason names none of these is not the disk's fault."""


class BookieNode:
    """One bookie id, life after life.

    Args:
        latency: of its disk.
        restart_seconds: how long a supervisor waits before it starts what ended by itself.
        has_operator: somebody may want it to be emptied.
    """

    def __init__(
        self,
        name: str,
        settings: BookieSettings,
        around: Surroundings,
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
        """A fault that has been taken back since has made its disk fail in this life."""
        self._short_of_disk = False
        """Its disk was full at some moment of this life."""
        self.memory_fails = False
        """What it gives out is not what it holds."""
        self._around = around
        self._rng = around.rng.fork(name)
        self._restart_seconds = restart_seconds
        self._has_operator = has_operator
        self._lives = 0
        self._registered = False
        self._to_replace = False
        self._blank = True
        """Its disk was empty, and it has not served from it yet."""
        self._directory_uuid = ""
        """Of the directory that served last."""
        self.tasks: Tasks | None = None
        self.service: BookieService | None = None
        self.disk = self._new_disk()

    @property
    def damaged(self) -> bool:
        """Whether anything was done on purpose to the directory that it has now: it may refuse to start."""
        return self._harm is not None

    @property
    def _harm(self) -> Harm | None:
        return self._around.god.harms.of(self._directory_uuid)

    @property
    def excused(self) -> bool:
        """Whether its disk was made to fail in this life, and has failed: it may give up for that."""
        return self._struck or any(fault.error and fault.seen >= fault.nth for fault in self.disk.faults)

    @property
    def ready(self) -> bool:
        """Whether it serves."""
        return self.bookie is not None

    @property
    def empty(self) -> bool:
        """Whether it waits to be replaced."""
        return self._to_replace

    def start(self) -> None:
        """Begin a life, unless one is under way."""
        if self.process is not None:
            return
        self._lives += 1
        around = self._around
        rng = self._rng.fork(f"life {self._lives}")
        self.process = SimProcess(self.name, around, self.clock, rng)
        self._struck = False
        self._short_of_disk = self.disk.capacity_bytes < self.capacity_bytes
        self.process.spawn(self._live(self.process))

    def start_in(self, seconds: float) -> None:
        """Begin the next life after a while, unless one has begun by then."""
        self._around.metadata.later(seconds, self.start)

    def kill(self, down_seconds: float = 0.0) -> None:
        """End the process, as ``kill -9`` does: what was written stays, what was in memory is gone."""
        if self._end():
            self.disk = self.disk.fork()
        self.start_in(down_seconds)

    def lose_power(self, down_seconds: float = 0.0) -> None:
        """End the process and the machine: what was not durable meets a random fate."""
        self._end(silent=True)
        self.disk = self.disk.lose_power(self._rng.fork(f"power {self._lives}"))
        self.start_in(down_seconds)

    def wipe(self, down_seconds: float = 0.0) -> None:
        """The machine comes back with an empty disk."""
        self._end(silent=True)
        self._lose_all()
        self.start_in(down_seconds)

    def damage(self, path: str, first: int, last: int) -> None:
        """Sectors ``first .. last`` of a file are changed on purpose, while it serves."""
        if self.bookie is not None:
            batches = self._index.in_log(path)
            self._around.god.harms.damage(self.name, self.bookie.incarnation, path, first, last, batches)

    def fill_disk(self, left_bytes: int) -> None:
        """Have so much room left on the disk, and no more."""
        self.disk.capacity_bytes = self.disk.state.used_bytes() + left_bytes
        self._short_of_disk = True

    def free_disk(self) -> None:
        """No planned faults, normal latency, all of its capacity."""
        self._struck = self.excused
        self.disk.faults.clear()
        self.disk.capacity_bytes = self.capacity_bytes

    def _lose_all(self) -> None:
        self._around.god.harms.lose(self.name, self._directory_uuid)
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
            self._around.god.mark("bookie: ends while a removed log is cut")
        process.kill(silent=silent)
        return True

    def _exit(self, reason: str) -> None:
        """The process ends itself."""
        self._around.note(self.name, "exits", reason)
        self.kill(self._restart_seconds)

    async def _live(self, process: SimProcess) -> None:
        """One life, from the directory to the end."""
        try:
            await self._serve(process)
        except TallybookError as error:
            if process is self.process:
                self._refused(error)
        except Exception as error:  # noqa: BLE001 - whatever a bookie raises but its declared errors is a defect
            self._around.god.violated("defect", f"{self.name} met {error!r}")

    def _refused(self, error: TallybookError) -> None:
        """The process ends in good order: it may not start, or may not go on."""
        god = self._around.god
        if is_defect(error):
            god.violated("defect", f"{self.name} cannot go on: {error!r}")
        elif isinstance(error, ForeignDirectory):
            god.expect(self._blank, "boot", f"{self.name} refuses its own directory: {error.message}")
            self._to_replace = True
        elif isinstance(error, DamagedFile):
            harmed = self._harm is not None and self._harm.explains_refusal(error.message)
            god.expect(harmed, "boot", f"{self.name} finds damage that nobody did: {error.message}")
            god.mark("bookie: refused to start on a damaged file")
            self._lose_all()
            self._to_replace = True
        elif isinstance(error, DiskFull):
            god.expect(self._short_of_disk or self.excused, "boot", f"{self.name}: {error.message}")
        elif isinstance(error, (DiskFailed, EntryUnknown)):
            god.expect(self.excused, "boot", f"{self.name}: {error.message}")
        else:
            allowed = isinstance(error, METADATA_ERRORS)
            god.expect(allowed, "boot", f"{self.name} ends for what is no reason: {error!r}")
        self._exit(repr(error))

    def _fail_safe(self, process: SimProcess, reason: str) -> None:
        if process is not self.process:
            return
        god = self._around.god
        god.mark("bookie: fail-safe")
        excused = self.excused and any(name in reason for name in DISK_ERRORS)
        god.expect(excused, "fail-safe", f"{self.name} gives up without a reason: {reason}")
        self._exit(reason)

    async def _serve(self, process: SimProcess) -> None:
        """What ``bookie/server`` does."""
        store, membership, god = process.session.store, process.session.membership, self._around.god
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
            fate_of=partial(fate_of, store),
            id_counter=store.id_counter,
            closed_up_to=partial(closed_up_to, store),
            registry=store,
            fail_safe=fail_safe,
            named=partial(named_ledgers, store),
            behind=BehindRecord(store, self.clock, process.rng.fork("behind")),
        )
        bookie = await boot(self.settings, world)
        god.expect(bool(self.disk.state.directories), "boot", f"{self.name} has booted from nothing")
        short = [] if self.damaged else logs_cut_short(self.disk, bookie)
        god.expect(not short, "boot", f"{self.name} finds entry logs cut short that nobody has cut: {short}")
        uuid = bookie.incarnation.directory_uuid
        same = uuid == self._directory_uuid
        god.expect(same or self._blank, "boot", f"{self.name} comes up as another one, and had lost nothing")
        self._directory_uuid, self._blank = uuid, False
        observed = ObservedBookie(bookie, god, lambda: self.memory_fails)
        service = BookieService(observed, self.settings, self.clock, tasks, await store.cluster_id(), fail_safe)
        listener = await process.transport.listen(f"{self.name}:{PORT}", service.accept)
        info = BookieInfo(self.name, listener.address, bookie.incarnation)
        mode = WantedMode.NORMAL
        if self._has_operator:
            mode = await look_at_mode(store, self.name, bookie.set_read_only)
        enrolment = Enrolment(membership, info, partial(_mode, bookie), self._free_bytes, self.clock)
        await bookie.compare_store()
        await enrolment.enter()
        await bookie.enrolled()
        if self._has_operator:
            following = follow_mode(store, self.name, bookie.set_read_only, self.clock, mode)
            tasks.spawn(following, name="mode", essential=True)
        self.bookie, self.service = bookie, service
        if not self._registered:
            self._registered = True
        else:
            await god.restarted(self.name, bookie, lambda: self.excused)
        self._around.note(self.name, "serves", bookie.incarnation.directory_uuid, bookie.incarnation.boot)
        await enrolment.keep()

    async def _replace(self, store: MetadataStore, rng: Rng) -> None:
        """``bookie init --replace``; one that was cut off is finished by the boot."""
        god = self._around.god
        god.expect(self._blank, "boot", f"{self.name} is replaced although it lost nothing")
        try:
            await replace_identity(
                self.settings,
                self.disk,
                store,
                rng,
                partial(ids_below, store.id_counter, partial(read_behind, store)),
                note=partial(note_replaced, store),
            )
        except ForeignDirectory:
            god.mark("bookie: replacement found finished")
        self._to_replace = False
        god.mark("bookie: replaced")

    async def _open_index(self, directory: str, create: bool) -> Index:
        index = await _WatchedIndex.open(self.disk, directory, create=create)
        index.on_left = partial(self._around.god.left, self.name)
        self._index = index
        return index

    async def _free_bytes(self) -> int:
        return (await self.disk.space(self.settings.data_directory)).free_bytes


def _mode(bookie: Bookie) -> BookieMode:
    return BookieMode.READ_ONLY if bookie.read_only else BookieMode.WRITABLE


def with_name(settings: BookieSettings, name: str) -> BookieSettings:
    """The same settings for the bookie called ``name``."""
    return settings.model_copy(update={"bookie_id": name})
