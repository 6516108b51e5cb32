"""The parts of a bookie, as ``process/assembly.py`` assembles them."""

from __future__ import annotations

from dataclasses import dataclass

from tallybook.runtime.metrics.usage import Meter

from .background.budget import BackgroundBudget
from .boot_times import BootTimes
from .directories.disk_monitor import DiskMonitor
from .directories.layout import DataDirectory
from .fail_safe import FailSafe
from .gc.collector import GarbageCollector
from .journal.journals import Journals
from .ledgers.confirmed_prefix import ConfirmedPrefixes
from .ledgers.key_verification import KeyVerification
from .ledgers.table import LedgerTable
from .read.entry_trace import EntryTracer
from .read.inventory import Inventory
from .read.last_add_confirmed import LastAddConfirmed
from .read.read_path import ReadPath
from .recovery.limbo_end import LimboEnd
from .recovery.limbo_marker import LimboMarker
from .scrub.damage_list import DamageList
from .scrub.scrubber import Scrubber
from .storage.checkpoint import CacheFlush, Checkpointer
from .storage.entry_log.logs import EntryLogs
from .storage.entry_tables import EntryTables
from .storage.index.port import Index
from .storage.read_ahead import ReadAhead
from .storage.read_cache import ReadCache
from .storage.write_cache import WriteCache
from .write.add_path import AddPath
from .write.admission import Admission
from .write.fencing import LedgerFencing
from .write.pending_acks import PendingAcks
from .write.space_waiters import SpaceWaiters


@dataclass(frozen=True, slots=True)
class BookieParts:
    """The parts of a bookie."""

    directory: DataDirectory
    journals: Journals
    logs: EntryLogs
    index: Index
    cache: WriteCache
    read_cache: ReadCache
    tables: EntryTables
    read_ahead: ReadAhead
    table: LedgerTable
    commits: PendingAcks
    admission: Admission
    adds: AddPath
    waiters: SpaceWaiters
    fences: LedgerFencing
    verifiers: KeyVerification
    lacs: LastAddConfirmed
    reads: ReadPath
    lookups: Meter
    checkpointer: Checkpointer
    flush: CacheFlush
    collector: GarbageCollector
    disk_monitor: DiskMonitor
    damage: DamageList
    scrub: Scrubber
    confirmed: ConfirmedPrefixes
    limbo_end: LimboEnd
    boot_times: BootTimes
    held: Inventory
    tracer: EntryTracer
    fail_safe: FailSafe
    limbo_marker: LimboMarker
    background: BackgroundBudget

    @property
    def read_only(self) -> bool:
        """Whether ordinary adds are refused."""
        return self.admission.closed_to_writers or self.table.limbo.awaits_registration
