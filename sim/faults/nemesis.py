"""Injects faults during a run.

The nemesis draws one fault after the other and ends it after a while. It stays within the fault model: it never damages
durable data of more bookies than every acked entry can lose (``RunConfiguration.max_damaged``). Disk faults are noted
at the bookie, which may give up because of them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import Final

from tallybook.bookie.directories.index_home import NUMBERS
from tallybook.bookie.directories.layout import DirectoryLayout
from tallybook.core.errors import DiskFailed, DiskFull
from tallybook.core.limits import SECTOR_BYTES
from tallybook.core.settings import BookieSettings
from tallybook.metadata.ledger.model import LedgerState
from tallybook.runtime.rng import Rng

from ..cluster.bookie_node import BookieNode
from ..cluster.process import SimEnvironment, SimProcess
from ..configuration.run_configuration import RunConfiguration, pick
from ..deterministic import DiskOperation, Effect, SimClock, SimDisk
from ..workload.ledgers import Workload
from ..workload.repairers import MAX_FREEZE_SECONDS as REPAIRERS_FREEZE_SECONDS
from ..workload.repairers import RepairNemesis
from .archive_faults import ArchiveNemesis
from .forged_adds import contradict
from .missing_rows import RowsAway

MAX_DOWN_SECONDS: Final = 10.0
MIN_FREEZE_SECONDS: Final = 0.001
MAX_FREEZE_SECONDS: Final = 600.0
LONG_FREEZE_SECONDS: Final = 10.0
SLEEPS_ON: Final = 0.3
"""Share of runs with ``freeze_client`` in which one client stays frozen until all others have finished."""
STRUCK_OPERATIONS: Final = (
    *((name, "") for name in ("write", "write-durable", "sync", "sync-directory", "rename", "create", "unlink")),
    ("truncate", "/entrylog-"),
)
"""Disk operations at which a bookie is struck, with a part of their path; truncations only of entry logs."""
ROTTING_PARTS: Final = ("ledgers", "journal", "index")


class Nemesis:
    """Injects faults until ``heal``, which also ends those that are still active."""

    def __init__(
        self, config: RunConfiguration, env: SimEnvironment, nodes: dict[str, BookieNode], workload: Workload
    ) -> None:
        self.struck: dict[str, int] = {}
        """How often each fault was injected."""
        self._config = config
        self._env = env
        self._nodes = nodes
        self._workload = workload
        self._clock = SimClock()
        self._rng = env.rng.fork("nemesis")
        self._stopped = False
        self._asleep_until: dict[SimProcess, float] = {}
        """When frozen processes are to resume."""
        self._strikes: dict[str, Callable[[], None]] = {
            "kill": lambda: self._node().kill(self._down_seconds()),
            "power": lambda: self._node().lose_power(self._down_seconds()),
            "absence": self._absence,
            "kill_at": lambda: self._strike_at(BookieNode.kill),
            "power_at": lambda: self._strike_at(BookieNode.lose_power),
            "freeze": lambda: self._freeze(self._node().process),
            "stumble": self._stumble,
            "slow_disk": self._slow_disk,
            "sync_error": self._sync_error,
            "write_error": self._write_error,
            "read_error": self._read_error,
            "disk_full": self._disk_full,
            "rot": self._rot,
            "bad_memory": self._bad_memory,
            "wipe": self._wipe,
            "replaced_disk": self._replaced_disk,
            "cut": lambda: self._cut_between(*self._two(), one_way=False),
            "one_way_cut": lambda: self._cut_between(*self._two(), one_way=True),
            "partition": self._partition,
            "swizzle": self._swizzle,
            "reset": lambda: env.net.reset(*self._two()),
            "metadata_cut": self._metadata_cut,
            "metadata_away": self._metadata_away,
            "expire": self._expire,
            "clock_jump": self._clock_jump,
            "kill_client": self._kill_client,
            "freeze_client": lambda: self._freeze(self._client()),
            "contradict": self._contradict,
        }
        self._archive: ArchiveNemesis | None = None
        if env.bucket is not None:
            rng = self._rng.fork("archive")
            self._archive = ArchiveNemesis(env, workload, env.bucket, rng, self._later)
            self._strikes |= self._archive.strikes
        self._repair: RepairNemesis | None = None
        if config.repair is not None:
            self._repair = RepairNemesis(env, list(nodes), workload, self._rng.fork("repair"), self._later)
            self._strikes |= self._repair.strikes
        self._rows = RowsAway(env, nodes, self._rng.fork("rows"), self._later)
        self._strikes |= self._rows.strikes

    async def run(self) -> None:
        """Inject faults until the nemesis is stopped."""
        kinds = [name for name, _ in self._config.faults]
        weights = [weight for _, weight in self._config.faults]
        while kinds and not self._stopped:
            await self._clock.sleep(2 * self._config.fault_seconds * self._rng.random())
            if not self._stopped:
                kind = _weighted(self._rng, kinds, weights)
                self._env.note("nemesis", kind)
                self.struck[kind] = self.struck.get(kind, 0) + 1
                self._strikes[kind]()

    def heal(self) -> None:
        """End all faults and restart most bookies from their disks. One client may stay frozen."""
        self._let_one_sleep()
        self._stopped = True
        self._env.note("nemesis", "heals")
        self._env.net.heal_all()
        self._env.metadata.heal()
        if self._archive is not None:
            self._archive.heal()
        if self._repair is not None:
            self._repair.heal()
        self._rows.heal()
        for client in self._workload.processes.values():
            self._wake(client.process)
        for node in self._nodes.values():
            untroubled = node.ready and not node.excused and not node.damaged
            node.free_disk()
            node.memory_fails = False
            draw = self._rng.random()
            if untroubled and draw < 0.3 and node.process is not None:
                node.process.thaw()
            elif draw < 0.6 and not node.empty:
                node.lose_power()
            else:
                node.kill()

    # -- choices --------------------------------------------------------------------------

    def _node(self) -> BookieNode:
        return self._nodes[pick(self._rng, list(self._nodes))]

    def _client(self) -> SimProcess | None:
        """Draw a client; writers and producers are twice as likely."""
        slots = list(self._workload.processes)
        slots += [slot for slot in slots if slot.startswith(("writer", "producer"))]
        return self._workload.processes[pick(self._rng, slots)].process if slots else None

    def _all_processes(self) -> list[str]:
        return [*self._nodes, *(client.name for client in self._workload.processes.values())]

    def _two(self) -> tuple[str, str]:
        """Draw a client and a bookie: only such pairs talk to each other."""
        client = self._client()
        return (client.name if client else pick(self._rng, list(self._nodes))), pick(self._rng, list(self._nodes))

    def _down_seconds(self) -> float:
        return float(MAX_DOWN_SECONDS * self._rng.random() ** 3)

    def _later(self, seconds: float, action: Callable[[], object]) -> None:
        """Call ``action`` after ``seconds``, unless everything was healed by then."""
        self._env.metadata.later(seconds, lambda: None if self._stopped else action())

    def _seconds(self, longest: float) -> float:
        return float(0.05 + longest * self._rng.random() ** 2)

    # -- processes ------------------------------------------------------------------------

    def _freeze(self, process: SimProcess | None, shortest_seconds: float = MIN_FREEZE_SECONDS) -> None:
        if process is not None:
            span = MAX_FREEZE_SECONDS / shortest_seconds
            seconds = shortest_seconds * span ** self._rng.random()
            if self._repair is not None and process in self._repair.repairers():
                seconds = min(seconds, REPAIRERS_FREEZE_SECONDS)
            process.freeze()
            self._later(seconds, process.thaw)
            self._asleep_until[process] = self._clock.monotonic() + seconds

    def _let_one_sleep(self) -> None:
        """Freeze a client until long after all others have finished, in some runs."""
        if "freeze_client" in dict(self._config.faults) and self._rng.random() < SLEEPS_ON:
            self._freeze(self._client(), LONG_FREEZE_SECONDS)

    def _wake(self, process: SimProcess) -> None:
        """Resume a client, unless it is to stay frozen for long."""
        left_seconds = self._asleep_until.get(process, 0.0) - self._clock.monotonic()
        if process.frozen and left_seconds >= LONG_FREEZE_SECONDS / 2:
            self._env.note("nemesis", f"{process.name} sleeps on for {left_seconds:.0f} s")
            self._env.metadata.later(left_seconds, process.thaw)
        else:
            process.thaw()

    def _stumble(self) -> None:
        """Stop a bookie for about the add timeout: it is back while writers look for a replacement."""
        node, detection_seconds = self._node(), self._config.add_timeout_ms / 1000
        if self._rng.random() < 0.5:
            node.kill(detection_seconds * (0.2 + self._rng.random()))
        elif node.process is not None:
            node.process.freeze()
            self._later(detection_seconds * (0.9 + 1.5 * self._rng.random()), node.process.thaw)

    def _absence(self) -> None:
        """Stop a bookie for so long that it is replaced; it comes back without the entries written meanwhile."""
        self._node().kill(MAX_DOWN_SECONDS * (0.3 + 0.4 * self._rng.random()))

    def _bad_memory(self) -> None:
        """Let a bookie return corrupted copies for a while."""
        node = self._node()
        node.memory_fails = True

        def exchanged() -> None:
            node.memory_fails = False

        self._later(self._seconds(6.0), exchanged)

    def _contradict(self) -> None:
        """Send a bookie other bytes for entries that it holds, with the right key or a wrong one."""
        node = self._node()
        if node.bookie is not None and not node.damaged:
            contradict(node.bookie, self._env.oracle, self._rng)

    def _kill_client(self) -> None:
        process = self._client()
        if process is not None:
            process.kill(silent=self._rng.random() < 0.3)

    def _clock_jump(self) -> None:
        day_us = 24 * 3600 * 1_000_000
        self._node().clock.jump_wall(self._rng.randint(-day_us, day_us))
        client = self._client()
        if client is not None:
            client.clock.jump_wall(self._rng.randint(-day_us, day_us))

    def _strike_at(self, strike: Callable[[BookieNode, float], None]) -> None:
        """Stop a bookie while one of its next disk operations of some kind is in flight."""
        node, (kind, part), left = self._node(), pick(self._rng, STRUCK_OPERATIONS), self._rng.randint(1, 5)
        disk, down_seconds = node.disk, self._down_seconds()

        def look(operation: DiskOperation) -> None:
            nonlocal left
            left -= operation.name == kind and part in operation.path
            if not left and node.disk is disk and not self._stopped:
                self._env.oracle.mark("nemesis: struck in the middle of an operation")
                strike(node, down_seconds)

        disk.on_submit = look

    # -- disks ----------------------------------------------------------------------------

    def _sync_error(self) -> None:
        """Let a sync fail. With ``CACHE_ONLY`` the data stay readable, even after a restart, but are not durable.

        That effect strikes only entry logs and journals: the in-memory index, which stands in for RocksDB, trusts its
        file.
        """
        node = self._node()
        effect = pick(self._rng, (Effect.NOTHING, Effect.IN_FLIGHT, Effect.CACHE_ONLY, Effect.CACHE_ONLY))
        kind, part, latest = pick(self._rng, (("sync", "", 6), ("sync-directory", "", 6), ("write-durable", "", 6)))
        if effect is Effect.CACHE_ONLY:
            # Entry logs are synced once per checkpoint.
            kind, part, latest = pick(self._rng, (("sync", "/ledgers/entrylog", 2), ("write-durable", "/journal/", 6)))
        node.disk.fail(kind, part, nth=self._rng.randint(1, latest), effect=effect)
        if self._rng.random() < 0.5:
            # A power loss exposes a bookie that ignored the failed sync.
            self._later(0.5 + self._seconds(4.0), lambda: node.lose_power(self._down_seconds()))

    def _write_error(self) -> None:
        effect = pick(self._rng, (Effect.NOTHING, Effect.IN_FLIGHT, Effect.PART))
        error: type[DiskFailed | DiskFull] = DiskFull if self._rng.random() < 0.3 else DiskFailed
        self._node().disk.fail("write", nth=self._rng.randint(1, 10), effect=effect, error=error)

    def _read_error(self) -> None:
        self._node().disk.fail("read", nth=self._rng.randint(1, 5), times=self._rng.randint(1, 5))

    def _slow_disk(self) -> None:
        disk = self._node().disk
        delay_seconds = 0.02 + 2.0 * self._rng.random() ** 4
        fault = disk.fail("*", times=1_000_000, error=None, delay_seconds=delay_seconds)
        self._later(self._seconds(10.0), lambda: disk.faults.remove(fault) if fault in disk.faults else None)

    def _disk_full(self) -> None:
        node = self._node()
        node.fill_disk(self._rng.randint(0, 40_000))

        def give_space_back() -> None:
            node.disk.capacity_bytes = node.capacity_bytes

        self._later(self._seconds(8.0), give_space_back)

    def damageable(self, members: Collection[str] | None = None) -> BookieNode | None:
        """Draw a bookie whose durable data may be damaged, so that every entry keeps a good copy.

        Args:
            members: choose among these; ``None`` for all bookies.
        """
        damaged = self._env.oracle.injected_damage.bookies()
        names = list(self._nodes) if len(damaged) < self._config.max_damaged else damaged
        names = [name for name in names if self._nodes[name].ready and (members is None or name in members)]
        return self._nodes[pick(self._rng, names)] if names else None

    def _wipe(self) -> None:
        node = self.damageable()
        if node is not None:
            node.wipe(self._down_seconds())

    def replace_disk_of(self, members: Collection[str]) -> bool:
        """Restart one of these bookies with an empty disk; return false if none may be damaged."""
        node = self.damageable(members)
        if node is not None:
            node.wipe()
        return node is not None

    def _replaced_disk(self) -> None:
        """Replace the disk of a member of an open ledger. Half of the time a client is killed, too."""
        known = [each.metadata for each in self._env.oracle.ledgers.values()]
        grows = [metadata.last_fragment.bookies for metadata in known if metadata.state is LedgerState.OPEN]
        if grows and self.replace_disk_of(pick(self._rng, grows)) and self._rng.random() < 0.5:
            self._kill_client()

    def _rot(self) -> None:
        """Corrupt one sector of durable data. Half of the time the bookie restarts and reads it."""
        node = self.damageable()
        if node is None:
            return
        part = pick(self._rng, ROTTING_PARTS)
        used = rotting(node.disk, node.settings, part)
        if not used:
            return
        self._env.oracle.mark(f"nemesis: rot in {part}")
        path = pick(self._rng, list(used))
        sector = pick(self._rng, used[path])
        node.damage(path, sector, sector)
        rot, kind = node.disk.rot, pick(self._rng, ("bit", "zero", "misdirected", "stale"))
        if kind == "bit":
            at = sector * SECTOR_BYTES + self._rng.randint(0, SECTOR_BYTES - 1)
            rot.flip_bit(path, at, self._rng.randint(0, 7))
        elif kind == "zero":
            rot.zero_sector(path, sector)
        elif kind == "misdirected":
            other = pick(self._rng, list(used))
            rot.copy_sector(path, sector, other, pick(self._rng, used[other]))
        else:
            rot.stale_sector(path, sector)
        if self._rng.random() < 0.5:
            node.kill(self._down_seconds())

    # -- network --------------------------------------------------------------------------

    def _cut_between(self, one: str, other: str, *, one_way: bool) -> None:
        net = self._env.net
        if self._rng.random() < 0.5:
            one, other = other, one
        ways = [(one, other)] if one_way else [(one, other), (other, one)]
        seconds = self._seconds(8.0)
        for source, target in ways:
            net.cut(source, target)
            self._later(seconds, partial(net.heal, source, target))

    def _partition(self) -> None:
        """Partition all processes into two groups, or one against all others."""
        names = self._rng.shuffled(self._all_processes())
        size = 1 if self._rng.random() < 0.4 else self._rng.randint(1, len(names) - 1)
        seconds = self._seconds(6.0)
        for one in names[:size]:
            for other in names[size:]:
                for source, target in ((one, other), (other, one)):
                    self._env.net.cut(source, target)
                    self._later(seconds, partial(self._env.net.heal, source, target))

    def _swizzle(self) -> None:
        """Disconnect some nodes one by one, and reconnect them in another order."""
        net, names = self._env.net, self._all_processes()
        chosen = self._rng.shuffled(names)[: self._rng.randint(1, len(names))]
        for moment, name in enumerate(chosen):
            for other in names:
                self._later(0.3 * moment, partial(net.partition, [name], [other]))
        begin = 0.3 * len(chosen) + self._seconds(3.0)
        for moment, name in enumerate(self._rng.shuffled(chosen)):
            for other in names:
                self._later(begin + 0.3 * moment, partial(net.heal, name, other))
                self._later(begin + 0.3 * moment, partial(net.heal, other, name))

    # -- metadata -------------------------------------------------------------------------

    def _metadata_cut(self) -> None:
        sessions = self._env.metadata.sessions
        session = sessions[pick(self._rng, self._all_processes())]
        session.cut()
        self._later(self._seconds(8.0), session.heal)

    def _metadata_away(self) -> None:
        metadata = self._env.metadata
        metadata.go_away()
        self._later(self._seconds(4.0), metadata.heal)

    def _expire(self) -> None:
        self._env.metadata.sessions[pick(self._rng, self._all_processes())].expire()
        open_ledgers = [
            known for known in self._env.oracle.ledgers.values() if known.metadata.state is LedgerState.OPEN
        ]
        if open_ledgers:
            self._env.oracle.mark("nemesis: session expired while ledgers are open")


def _weighted(rng: Rng, names: list[str], weights: list[float]) -> str:
    at = rng.random() * sum(weights)
    for name, weight in zip(names, weights, strict=True):
        at -= weight
        if at < 0:
            return name
    return names[-1]


def _vouched_bytes(data: bytes) -> int:
    """Length of the prefix of the memory index file that a later record confirms.

    The memory index takes damage behind it for a torn tail; the production index can tell the difference.
    """
    at = vouched = 0
    while data[at : at + 4] == b"TMIX":
        vouched = int.from_bytes(data[at + 16 : at + 24], "little")
        at += 32 + int.from_bytes(data[at + 4 : at + 8], "little")
    return vouched


def rotting(disk: SimDisk, settings: BookieSettings, part: str) -> dict[str, list[int]]:
    """Files of one part (journal, ledgers, index) of a bookie, with their non-empty sectors."""
    layout = DirectoryLayout(settings.data_directory)
    directories = {
        "journal": settings.journal_directories or (layout.journal,),
        "ledgers": settings.ledger_directories or (layout.ledgers,),
        # After a loss the index has a new directory beside the first one.
        "index": tuple(map(layout.index, NUMBERS)),
    }[part]
    there = [directory for directory in directories if directory in disk.state.directories]
    found: dict[str, list[int]] = {}
    for path in [f"{directory}/{name}" for directory in there for name in disk.state.names(directory)]:
        if disk.state.inode(path) is not None:
            data = disk.peek(path)
            sectors = _used_sectors(data[: _vouched_bytes(data)] if part == "index" else data)
            if sectors:
                found[path] = sectors
    return found


def _used_sectors(data: bytes) -> list[int]:
    """Complete sectors that are not all zero."""
    whole = range(len(data) // SECTOR_BYTES)
    return [sector for sector in whole if any(data[sector * SECTOR_BYTES : (sector + 1) * SECTOR_BYTES])]
