"""A disk in memory that loses what was not synced.

``SimDisk`` implements the ``Disk`` port over a ``DiskState``. Each operation takes simulated time, during which its
effect is *in flight*: visible to readers, but not durable. ``crash`` makes a random power loss; ``crash_states`` lists
all the tolerated ones. Both guarantee only what the port promises, so code that survives them survives any file system
that keeps the port's promises.

For tests: ``fail`` makes chosen operations fail, ``rot`` damages durable bytes, ``trace`` has the last operations, and
the hooks ``on_submit`` and ``on_operation`` are called while an operation is in flight and after it has ended.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from crc32c import crc32c

from tallybook.core.errors import DamagedFile, DirectoryInUse, DiskFailed, DiskFull, InvalidArgument, check
from tallybook.core.limits import GIB
from tallybook.runtime.disk.port import Space, WriteSource, check_buffer_bytes
from tallybook.runtime.rng import Rng, SeededRng

from .crash_outcomes import CrashOptions, power_loss_outcomes, random_outcomes
from .faults import NO_LATENCY, DiskFault, DiskOperation, Effect, Latency
from .file import SimFile
from .loop import SimLoop
from .pump import SimPump
from .rot import Rot
from .state import DirectoryState, DiskState, split
from .step import DiskStep

KEPT_OPERATIONS: Final = 10_000
LOCK_NAME: Final = "LOCK"
TEMPORARY_SUFFIX: Final = ".tmp"

Hook = Callable[[DiskOperation], None]


def _no_hook(_operation: DiskOperation) -> None:
    """Default hook: do nothing."""


class SimLock:
    """A ``DirectoryLock`` that a power loss releases."""

    def __init__(self, locks: dict[str, SimLock], directory: str) -> None:
        self._locks = locks
        self._directory = directory

    async def release(self) -> None:
        """Release the lock."""
        if self._locks.get(self._directory) is self:
            del self._locks[self._directory]


class SimDisk:
    """A simulated ``Disk``.

    Args:
        rng: decides latencies and random crashes.
        latency: how long operations take in simulated time.
        capacity_bytes: sum of file sizes above which writes raise ``DiskFull``.
        names_with_sync: whether the first sync of a file also makes its name durable, as on ext4; false by default,
            because code must not rely on it.
        state: its contents; empty by default.
        name: shown in the loop's trace.
    """

    def __init__(
        self,
        rng: Rng | None = None,
        *,
        latency: Latency = NO_LATENCY,
        capacity_bytes: int = 64 * GIB,
        names_with_sync: bool = False,
        state: DiskState | None = None,
        name: str = "disk",
    ) -> None:
        self._rng = rng or SeededRng(0)
        self._latency = latency
        self._latency_rng = self._rng.fork("latency") if latency.mean_seconds else None
        self._names_with_sync = names_with_sync
        self._locks: dict[str, SimLock] = {}
        self._replacing: dict[str, None] = {}
        self._pumps: list[SimPump] = []
        self._dead = False
        self.life = 0
        self.operations = 0
        self.state = state or DiskState()
        self.capacity_bytes = capacity_bytes
        self.name = name
        self.faults: list[DiskFault] = []
        self.trace: deque[DiskOperation] = deque(maxlen=KEPT_OPERATIONS)
        self.on_submit: Hook = _no_hook
        self.on_operation: Hook = _no_hook

    # -- the port -------------------------------------------------------------------------

    async def open(
        self,
        path: str,
        *,
        create: bool = False,
        writable: bool = True,
        durable: bool = False,
        direct: bool = False,
        exact: bool = False,
    ) -> SimFile:
        """Open a file; ``create`` creates it if it is missing."""
        self._directory(split(path)[0])
        if path in self.state.directories:
            raise DiskFailed(f"open {path}: it is a directory")
        if self.state.inode(path) is None and create:
            await self._act("create", path, lambda: self._create(path))
        else:
            await self._act("open", path)
        return SimFile(self, path, self._existing(path), writable=writable, durable=durable, aligned=durable or direct)

    async def read_file(self, path: str, max_bytes: int) -> bytes | None:
        """The whole of a small file, or ``None``."""
        if self.state.inode(path) is None:
            await self._act("open", path)
            return None
        file = await self.open(path, writable=False)
        try:
            size = await file.size()
            if size > max_bytes:
                raise DamagedFile(f"{path} has {size} bytes, more than the {max_bytes} it may have")
            return await file.read(0, size)
        finally:
            await file.close()

    async def replace_file(self, path: str, data: bytes) -> None:
        """Write a temporary file, sync it, rename it over ``path``, sync the directory."""
        check(path not in self._replacing, f"two concurrent replacements of {path}")
        self._replacing[path] = None
        try:
            temporary = path + TEMPORARY_SUFFIX
            file = await self.open(temporary, create=True)
            try:
                await file.truncate(0)
                await file.write(0, [data])
                await file.sync()
            finally:
                await file.close()
            await self.rename(temporary, path)
            await self.sync_directory(split(path)[0])
        finally:
            self._replacing.pop(path, None)

    async def list(self, directory: str) -> list[str]:
        """Names in ``directory``, sorted."""
        self._directory(directory)
        await self._act("list", directory)
        return self.state.names(directory)

    async def make_directory(self, path: str) -> None:
        """Create ``path`` and its parents, one by one, each durable before the next."""
        parts = path.strip("/").split("/")
        for depth in range(1, len(parts) + 1):
            await self._make_level("/" + "/".join(parts[:depth]))

    async def rename(self, old: str, new: str) -> None:
        """Rename within a directory; an existing file with the new name is replaced."""
        (directory, old_name), (new_directory, new_name) = split(old), split(new)
        if directory != new_directory:
            raise InvalidArgument(f"rename from {old} to {new} is not within one directory")
        if new in self.state.directories:
            raise DiskFailed(f"rename {old}: {new} is a directory")
        self._existing(old)
        await self._act("rename", old, lambda: self.state.rename(directory, old_name, new_name))

    async def unlink(self, path: str) -> None:
        """Remove a file, if it exists."""
        if path in self.state.directories:
            raise DiskFailed(f"unlink {path}: it is a directory")
        if self.state.inode(path) is not None:
            await self._act("unlink", path, lambda: self.state.unlink(*split(path)))

    async def sync_directory(self, path: str) -> None:
        """Make the names in ``path`` durable."""
        step = self.begin("sync-directory", path)
        numbers = {change.number for change in self._directory(path).pending}
        await step.in_flight()
        self.state.settle_names(path, numbers)
        self.state.reclaim()
        step.ended()

    async def lock(self, directory: str) -> SimLock:
        """Lock the directory until ``release`` or a power loss."""
        file = await self.open(f"{directory.rstrip('/')}/{LOCK_NAME}", create=True)
        await file.close()
        if directory in self._locks:
            raise DirectoryInUse(f"another process uses {directory}")
        self._locks[directory] = SimLock(self._locks, directory)
        return self._locks[directory]

    async def space(self, path: str) -> Space:
        """Free and total bytes."""
        await self._act("space", path)
        return Space(self.free_bytes(), self.capacity_bytes)

    def buffer(self, size: int) -> memoryview:
        """Memory for the writes of a pump."""
        return memoryview(bytearray(check_buffer_bytes(size)))

    def pump(self, source: WriteSource, *, name: str) -> SimPump:
        """Start a pump as a task on the running loop."""
        pump = SimPump(source, name=name, rng=self._rng.fork(f"pump/{name}"))
        self._pumps = [running for running in self._pumps if not running.ended]
        self._pumps.append(pump)
        return pump

    # -- for tests ------------------------------------------------------------------------

    @property
    def rot(self) -> Rot:
        """Damages durable bytes."""
        return Rot(self.state)

    def free_bytes(self) -> int:
        """Free space in bytes."""
        return max(0, self.capacity_bytes - self.state.used_bytes())

    def peek(self, path: str) -> bytes:
        """The bytes of a file as readers see them, without counting an operation."""
        content = self.state.files[self._existing(path)].current
        return content.read(0, content.size)

    def fail(
        self,
        operation: str,
        path_part: str = "",
        *,
        nth: int = 1,
        times: int = 1,
        error: type[DiskFailed | DiskFull] | None = DiskFailed,
        effect: Effect = Effect.NOTHING,
        delay_seconds: float = 0.0,
    ) -> DiskFault:
        """Plan a failure of the nth matching operation from now on; see ``DiskFault``."""
        fault = DiskFault(operation, path_part, nth, times, error, effect, delay_seconds)
        self.faults.append(fault)
        return fault

    def fork(self) -> SimDisk:
        """An independent copy, including pending changes, without locks, faults and hooks."""
        return self._with(self.state.fork())

    def image(self, outcomes: Mapping[int, str]) -> SimDisk:
        """The disk after a power loss with these outcomes of pending changes (see ``state``)."""
        return self._with(self.state.image(outcomes))

    def crash_states(
        self, rng: Rng, *, subsets: int = 20, options: CrashOptions | None = None
    ) -> Iterator[tuple[str, SimDisk]]:
        """Tolerated outcomes of a power loss now: a description, and an independent disk for each."""
        chosen = options or CrashOptions(subsets=subsets)
        now = self.fork()  # this disk may change while the caller iterates
        outcomes_now = power_loss_outcomes(now.state.pending(), rng, chosen)
        return ((description, now.image(outcomes)) for description, outcomes in outcomes_now)

    def crash(self, rng: Rng) -> None:
        """Lose power in place: pending changes get random outcomes; locks, pumps and open files are gone."""
        self._power_off()
        self.state = self.state.image(random_outcomes(self.state.pending(), rng))

    def lose_power(self, rng: Rng) -> SimDisk:
        """Like ``crash``, but return a new disk; every later operation on this one fails.

        So nothing that a killed node still does can reach its successor.
        """
        self._power_off()
        self._dead = True
        return self.image(random_outcomes(self.state.pending(), rng))

    # -- one operation --------------------------------------------------------------------

    def begin(self, name: str, path: str, offset: int = 0, size: int = 0, *, data: bytes = b"") -> DiskStep:
        """Count and trace an operation, and apply planned faults; ``data`` is what it writes."""
        self.check_life(self.life, path)
        self.operations += 1
        operation = DiskOperation(self.operations, name, path, offset, size)
        self.trace.append(operation)
        loop = asyncio.get_running_loop()
        if isinstance(loop, SimLoop):
            loop.note(self.name, operation, crc32c(data))
        seconds = self._latency.draw(self._latency_rng, name) if self._latency_rng is not None else 0.0
        struck = self._struck(operation) if self.faults else None
        return DiskStep(self, operation, struck, seconds + (struck.delay_seconds if struck else 0.0))

    def _struck(self, operation: DiskOperation) -> DiskFault | None:
        """The first planned fault that strikes; all faults count the operation."""
        striking = [fault for fault in self.faults if fault.strikes(operation)]
        return striking[0] if striking else None

    def check_life(self, life: int, path: str) -> None:
        """Fail operations of handles from before the last power loss."""
        if self._dead or life != self.life:
            raise DiskFailed(f"{path}: the disk lost power")

    def synced(self, inode: int) -> None:
        """Called after the sync of a file; with ``names_with_sync`` its name is durable, too."""
        if self._names_with_sync:
            self.state.settle_creation(inode)

    async def _act(self, name: str, path: str, act: Callable[[], object] | None = None) -> None:
        step = self.begin(name, path)
        if act is not None and step.acts:
            act()
        await step.in_flight()
        step.ended()

    def _create(self, path: str) -> None:
        if self.state.inode(path) is None:
            self.state.create(path)

    async def _make_level(self, path: str) -> None:
        if self.state.inode(path) is not None:
            raise DiskFailed(f"mkdir {path}: it is a file")
        known = self.state.directories.get(path)
        if known is not None and known.made is None:
            return
        # If another task is creating it, or failed to, it is not durable yet.
        step = self.begin("mkdir", path)
        if step.acts and known is None:
            self.state.make_directory(path)
        await step.in_flight()
        self.state.directories[path].made = None
        step.ended()

    def _directory(self, path: str) -> DirectoryState:
        if path not in self.state.directories:
            raise FileNotFoundError(f"no such directory: {path}")
        return self.state.directories[path]

    def _existing(self, path: str) -> int:
        inode = self.state.inode(path)
        if inode is None:
            raise FileNotFoundError(f"no such file: {path}")
        return inode

    def _power_off(self) -> None:
        self.life += 1
        for pump in self._pumps:
            pump.kill()
        self._pumps, self._locks, self._replacing = [], {}, {}

    def _with(self, state: DiskState) -> SimDisk:
        return SimDisk(
            self._rng,
            latency=self._latency,
            capacity_bytes=self.capacity_bytes,
            names_with_sync=self._names_with_sync,
            state=state,
            name=self.name,
        )
