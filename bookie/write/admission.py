"""Admission control: when a bookie answers an add with BUSY. Limits are checked before anything is journaled.

*Ordinary* adds are refused at any limit: bytes in flight, age of the oldest record that waits for the device, space in
the journal, ledgers whose state is only in memory. *Recovery* adds, fences and LACs have a reserve in each of these,
and are also taken while the bookie is read-only, so that overload by writers never delays a recovery. *Repair* adds
share this lane, but not the last space of a disk.

Half of the bytes in flight is reserved for clients that have none: busy ones would take all space as soon as it is
free. BUSY carries a retry hint that follows the current latency, since a refused batch has cost both sides its bytes.
docs/understand/protocol.md lists all reasons of BUSY, and the file that decides each of them.
"""

from __future__ import annotations

from typing import Final, NamedTuple, Protocol

from tallybook.core.add_kind import AddKind
from tallybook.core.errors import BookieReadOnly, Busy, EntryTooLarge
from tallybook.core.limits import BLOCK_BYTES
from tallybook.core.settings import AdmissionSettings
from tallybook.runtime.metrics.catalog import MetricKind
from tallybook.runtime.metrics.part_metrics import PartMetrics

from ..directories.watermarks import DiskPressure
from ..journal.space import ADD_RESERVE_SHARE
from ..storage.write_cache import BATCH_OVERHEAD_BYTES

RECOVERY_SHARE: Final = 8
"""The reserve of recovery adds is one part in this many."""

RESERVED_SHARE: Final = 2
"""One part in this many of the bytes in flight is for clients that have none in flight."""

MAX_DIRTY_LEDGERS: Final = 100_000
"""Ledgers whose state may wait for a checkpoint; above it, ordinary adds are BUSY."""

_RETRY_QUEUE_MS: Final = 20
_RETRY_FLUSH_MS: Final = 100
MAX_RETRY_MS: Final = 1_000
"""Upper bound of the hint: a long queue may also drain at once, if its disk only hung."""
_RETRY_DISK_MS: Final = 60_000
"""Disk space is freed when ledgers are deleted, which takes a while."""


class JournalLoad(Protocol):
    """How busy the journal is; asked once a batch."""

    def space_bytes(self, *, urgent: bool = False) -> int:
        """The largest record that can be written without waiting for a checkpoint."""

    def oldest_queued_age_seconds(self) -> float:
        """How long the oldest record has been waiting for the device."""


class Refusal(NamedTuple):
    """Why an add is refused: a wire code, and when to retry."""

    code: int
    retry_after_ms: int
    reason: str
    needs_flush: bool = False
    """A checkpoint frees space."""


_TOO_LARGE: Final = Refusal(EntryTooLarge.wire_code, 0, "too large")
_READ_ONLY: Final = Refusal(BookieReadOnly.wire_code, 0, "read-only")
_DISK_RESERVED: Final = Refusal(Busy.wire_code, _RETRY_DISK_MS, "room for repairs")
_INFLIGHT: Final = Refusal(Busy.wire_code, _RETRY_QUEUE_MS, "bytes in flight")
_QUEUE_AGE: Final = Refusal(Busy.wire_code, _RETRY_QUEUE_MS, "age of the journal queue")
JOURNAL_FULL: Final = Refusal(Busy.wire_code, _RETRY_FLUSH_MS, "room in the journal")
_LEDGERS: Final = Refusal(Busy.wire_code, _RETRY_FLUSH_MS, "ledgers that wait for a checkpoint", needs_flush=True)
WAITING: Final = Refusal(Busy.wire_code, _RETRY_QUEUE_MS, "adds that wait")
"""For an add that would have to wait while too many others do."""
CACHE_FULL: Final = Refusal(Busy.wire_code, _RETRY_FLUSH_MS, "room in the write cache", needs_flush=True)
"""For an add that waited for the write cache up to the limit."""

CLOSED: Final = "closed"
"""Reason of the refusals of a bookie that stops; not counted."""

_COUNTED: Final = (
    *(_TOO_LARGE, _READ_ONLY, _DISK_RESERVED, _INFLIGHT, _QUEUE_AGE, _LEDGERS),
    *(JOURNAL_FULL, WAITING, CACHE_FULL),
)
REASONS: Final = tuple(sorted({CLOSED, *(refusal.reason for refusal in _COUNTED)}))


class Admission:
    """Decides whether an add is taken.

    Args:
        settings: the limits. Sizes include the overhead of a batch.
        journal: how busy the journal is.
        pressure: while only the reserve of the disk is left, ordinary adds are refused.
        journal_bytes: capacity of the journal.
        max_add_bytes: largest add that the journal takes.
        max_dirty_ledgers: see ``MAX_DIRTY_LEDGERS``.
    """

    def __init__(
        self,
        settings: AdmissionSettings,
        journal: JournalLoad,
        pressure: DiskPressure,
        *,
        journal_bytes: int,
        max_add_bytes: int,
        max_dirty_ledgers: int = MAX_DIRTY_LEDGERS,
    ) -> None:
        self.max_inflight_bytes = int(settings.max_inflight_bytes)
        self._max_shared_bytes = self.max_inflight_bytes - self.max_inflight_bytes // RESERVED_SHARE
        self.max_recovery_bytes = int(settings.max_inflight_bytes) // RECOVERY_SHARE
        self._max_queue_age_seconds = settings.max_queue_age_ms / 1000
        self._journal = journal
        self._pressure = pressure
        self._journal_reserve_bytes = journal_bytes // ADD_RESERVE_SHARE
        self.max_add_bytes = max_add_bytes
        self.max_batch_bytes = max_add_bytes - BATCH_OVERHEAD_BYTES
        """The largest batch that is taken."""
        self.max_dirty_ledgers = max_dirty_ledgers
        self._read_only = False
        self.inflight_bytes = 0
        """Ordinary adds taken and not yet answered."""
        self.recovery_bytes = 0
        """Recovery adds taken and not yet answered."""
        self._last_seconds = 0.0
        """Latency of the ordinary add that was answered last."""
        self.refused = dict.fromkeys(REASONS, 0)
        """Number of refused adds, by reason."""

    def set_read_only(self, read_only: bool) -> None:
        """Refuse ordinary adds, or accept them again: the operator's decision."""
        self._read_only = read_only

    @property
    def closed_to_writers(self) -> bool:
        """Whether ordinary adds of any size are refused for now."""
        return self._read_only or self._pressure.only_reserve_left

    def refusal(self, size: int, dirty_count: int, kind: AddKind, *, others_in_flight: bool = False) -> Refusal | None:
        """Why a batch of ``size`` bytes cannot be taken now, or ``None``. An empty lane takes any one batch.

        A recovery add that is too large may repeat a batch that is held, from before the limit was lowered. The caller
        checks that, and calls ``check_size`` if it is not held.

        Args:
            others_in_flight: the same client has other adds in flight.
        """
        recovery = kind.from_recovery
        if size > self.max_add_bytes and not recovery:
            self.count(_TOO_LARGE)
            return _TOO_LARGE
        if kind is AddKind.REPAIR and self._pressure.only_reserve_left:
            self.count(_DISK_RESERVED)
            return _DISK_RESERVED
        if recovery:
            refusal = self._recovery_refusal(size)
        else:
            refusal = self._ordinary_refusal(size, dirty_count, others_in_flight=others_in_flight)
        if refusal is not None:
            self.count(refusal)
        return refusal

    def check_size(self, size: int) -> None:
        """Check that an add of ``size`` bytes can fit the journal at all.

        Raises:
            EntryTooLarge: it cannot.
        """
        if size > self.max_add_bytes:
            self.count(_TOO_LARGE)
            raise EntryTooLarge(f"an add of {size} bytes exceeds the limit of {self.max_add_bytes}")

    def urgent_refusal(self) -> Refusal | None:
        """Why not even a fence or a LAC can be journaled now, or ``None``."""
        return JOURNAL_FULL if self._journal.space_bytes(urgent=True) < BLOCK_BYTES // 2 else None

    def journal_takes(self, size: int, *, recovery: bool) -> bool:
        """Whether the journal has space for a batch of ``size`` bytes; ordinary adds leave a reserve."""
        return self._journal.space_bytes() >= (size if recovery else size + self._journal_reserve_bytes)

    def count(self, refusal: Refusal) -> None:
        """Count a refused add."""
        self.refused[refusal.reason] += 1

    def take(self, size: int, *, recovery: bool) -> None:
        """Add the bytes of a batch to those in flight, until ``release``."""
        if recovery:
            self.recovery_bytes += size
        else:
            self.inflight_bytes += size

    def release(self, size: int, seconds: float, *, recovery: bool) -> None:
        """Remove the bytes of an answered batch, and remember how long it took."""
        if recovery:
            self.recovery_bytes -= size
        else:
            self.inflight_bytes -= size
            self._last_seconds = seconds

    def with_hint(self, refusal: Refusal) -> Refusal:
        """Set the retry hint of an ordinary add's refusal to when half of the adds ahead of it should be done."""
        if refusal.code != Busy.wire_code:
            return refusal
        half_ms = min(MAX_RETRY_MS, int(self._last_seconds * 500))
        return refusal._replace(retry_after_ms=max(refusal.retry_after_ms, half_ms))

    def _ordinary_refusal(self, size: int, dirty_count: int, *, others_in_flight: bool) -> Refusal | None:
        if self.closed_to_writers:
            return _READ_ONLY
        limit = self._max_shared_bytes if others_in_flight else self.max_inflight_bytes
        if self.inflight_bytes and self.inflight_bytes + size > limit:
            return _INFLIGHT
        if self._journal.oldest_queued_age_seconds() > self._max_queue_age_seconds:
            return _QUEUE_AGE
        if not self.journal_takes(size, recovery=False):
            return JOURNAL_FULL
        if dirty_count >= self.max_dirty_ledgers:
            return _LEDGERS
        return None

    def _recovery_refusal(self, size: int) -> Refusal | None:
        if self.recovery_bytes and self.recovery_bytes + size > self.max_recovery_bytes:
            return _INFLIGHT
        if size <= self.max_add_bytes and not self.journal_takes(size, recovery=True):
            return JOURNAL_FULL
        return None


METRICS: Final = (
    PartMetrics[Admission]()
    .gauge(
        "inflight_bytes",
        "tallybook_bookie_inflight_bytes",
        "Bytes of adds taken and not yet answered.",
        lambda admission: admission.inflight_bytes,
    )
    .gauge(
        "recovery_inflight_bytes",
        "tallybook_bookie_recovery_inflight_bytes",
        "Bytes of recovery adds taken and not yet answered.",
        lambda admission: admission.recovery_bytes,
    )
    .gauge(
        "max_inflight_bytes",
        "tallybook_bookie_max_inflight_bytes",
        "Maximum bytes of ordinary adds in flight.",
        lambda admission: admission.max_inflight_bytes,
    )
    .gauge(
        "max_recovery_inflight_bytes",
        "tallybook_bookie_max_recovery_inflight_bytes",
        "Maximum bytes of recovery adds in flight.",
        lambda admission: admission.max_recovery_bytes,
    )
    .gauge(
        "max_ledgers_dirty",
        "tallybook_bookie_max_ledgers_dirty",
        "Maximum number of dirty ledgers; at the limit, adds wait for a checkpoint.",
        lambda admission: admission.max_dirty_ledgers,
    )
    .each(
        MetricKind.COUNTER,
        "refused_{}_total",
        "tallybook_bookie_refused_adds_total",
        "Adds refused, by reason.",
        "reason",
        REASONS,
        lambda admission, reason: admission.refused[reason],
    )
)
