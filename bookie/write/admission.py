"""When a bookie says BUSY: what is taken is bounded, and refused before anything is journaled.

There are two lanes. *Ordinary* adds are refused when any of their bounds is reached: bytes
taken and not yet answered, the age of the oldest record that waits for the device, room in
the journal, ledgers whose state only memory has. *Recovery* adds, fences and LACs have a reserve
of their own in each of them, so that overload by writers never delays the end of a ledger,
and they are taken while the bookie is read-only. *Repair* adds share the lane of recoveries, but not the
last room of a disk: a repair can wait, or go to another bookie, and there may be more to repair than there is room.

A client that has nothing under way comes first: half of the bytes in flight is for such. Without it, those who have
much under way take whatever room there is as soon as it is there, since they ask far more often.

BUSY comes with a hint when to try again. What is refused has cost both sides its bytes, so the hint follows how long
the bookie takes: whoever comes back when half of the queue is gone finds room, and nobody asks in vain meanwhile.
"""

from __future__ import annotations

from typing import Final, NamedTuple, Protocol

from tallybook.core.config import AdmissionSettings
from tallybook.core.errors import BookieReadOnly, Busy, EntryTooLarge
from tallybook.core.limits import BLOCK_BYTES

from .journal.room import ADD_RESERVE_SHARE
from .storage.write_cache import BATCH_OVERHEAD_BYTES

RECOVERY_SHARE: Final = 8
"""The reserve of recovery adds is one part in this many."""

BESIDE_SHARE: Final = 2
"""One part in this many of the bytes in flight is for clients that have none of them."""

MAX_DIRTY_LEDGERS: Final = 100_000
"""Ledgers whose state may wait for a checkpoint; above it, ordinary adds are BUSY."""

_RETRY_QUEUE_MS: Final = 20
_RETRY_FLUSH_MS: Final = 100
MAX_RETRY_MS: Final = 1_000
"""However slow the bookie is: a queue may also vanish at once, where its disk was what hung."""
_RETRY_DISK_MS: Final = 60_000
"""Room on the disk comes when ledgers go, which takes its time."""


class JournalLoad(Protocol):
    """How busy the journal is; asked once a batch."""

    def room_bytes(self, *, urgent: bool = False) -> int:
        """The largest record that can be written without waiting for a checkpoint."""

    def oldest_queued_age_seconds(self) -> float:
        """How long the oldest record has been waiting for the device."""


class Refusal(NamedTuple):
    """Why an add is not taken: a wire code, and when to try again."""

    code: int
    retry_after_ms: int
    reason: str
    needs_flush: bool = False
    """A checkpoint makes room."""


_TOO_LARGE: Final = Refusal(EntryTooLarge.wire_code, 0, "too large")
_READ_ONLY: Final = Refusal(BookieReadOnly.wire_code, 0, "read-only")
_REPAIR_ROOM: Final = Refusal(Busy.wire_code, _RETRY_DISK_MS, "room for repairs")
_INFLIGHT: Final = Refusal(Busy.wire_code, _RETRY_QUEUE_MS, "bytes in flight")
_QUEUE_AGE: Final = Refusal(Busy.wire_code, _RETRY_QUEUE_MS, "age of the journal queue")
JOURNAL_ROOM: Final = Refusal(Busy.wire_code, _RETRY_FLUSH_MS, "room in the journal")
_LEDGERS: Final = Refusal(Busy.wire_code, _RETRY_FLUSH_MS, "ledgers that wait for a checkpoint", needs_flush=True)
CACHE_FULL: Final = Refusal(Busy.wire_code, _RETRY_FLUSH_MS, "room in the write cache", needs_flush=True)
"""For an add that waited for the write cache as long as it may."""


class Admission:
    """The door of the add path.

    Args:
        settings: the bounds. Sizes include what a batch costs besides its bytes.
        journal: how busy the journal is.
        journal_bytes: capacity of the journal.
        max_add_bytes: largest add that the journal takes.
        max_dirty_ledgers: see ``MAX_DIRTY_LEDGERS``.
    """

    def __init__(
        self,
        settings: AdmissionSettings,
        journal: JournalLoad,
        *,
        journal_bytes: int,
        max_add_bytes: int,
        max_dirty_ledgers: int = MAX_DIRTY_LEDGERS,
    ) -> None:
        self.max_inflight_bytes = int(settings.max_inflight_bytes)
        self._max_beside_bytes = self.max_inflight_bytes - self.max_inflight_bytes // BESIDE_SHARE
        self.max_recovery_bytes = int(settings.max_inflight_bytes) // RECOVERY_SHARE
        self._max_queue_age_seconds = settings.max_queue_age_ms / 1000
        self._journal = journal
        self._journal_reserve_bytes = journal_bytes // ADD_RESERVE_SHARE
        self.max_add_bytes = max_add_bytes
        self.max_batch_bytes = max_add_bytes - BATCH_OVERHEAD_BYTES
        """The largest batch that is taken."""
        self.max_dirty_ledgers = max_dirty_ledgers
        self.read_only = False
        """While set, ordinary adds are refused."""
        self.disk_full = False
        """The same, for as long as checkpoints find no room."""
        self.short_of_disk = False
        """The same, while so much of the disk is in use that the rest is for recoveries and compaction."""
        self.inflight_bytes = 0
        """Ordinary adds taken and not yet answered."""
        self.recovery_bytes = 0
        """Recovery adds taken and not yet answered."""
        self._last_seconds = 0.0
        """How long the latest ordinary add took that was answered."""
        self.refusals: dict[str, int] = {}
        """How often an add was refused, by reason."""

    @property
    def closed_to_writers(self) -> bool:
        """Whether ordinary adds are refused for now, whatever their size."""
        return self.read_only or self.only_reserve_left

    @property
    def only_reserve_left(self) -> bool:
        """Whether what room the disk has, if any, is for recoveries, fences and compaction."""
        return self.disk_full or self.short_of_disk

    def refusal(
        self, size: int, dirty_ledgers: int, *, recovery: bool, repair: bool = False, beside: bool = False
    ) -> Refusal | None:
        """Why a batch of ``size`` bytes cannot be taken now, or ``None``. A lane that is empty takes any one batch.

        A recovery add that is too large may be of a batch that is held, from before the limit was lowered. The
        caller looks for that, and calls ``check_size`` where it is not held.

        Args:
            repair: a recovery add that only gives back what there is elsewhere.
            beside: the same client has others under way.
        """
        if size > self.max_add_bytes and not recovery:
            self.count(_TOO_LARGE)
            return _TOO_LARGE
        if repair and self.only_reserve_left:
            self.count(_REPAIR_ROOM)
            return _REPAIR_ROOM
        refusal = self._recovery_refusal(size) if recovery else self._ordinary_refusal(size, dirty_ledgers, beside)
        if refusal is not None:
            self.count(refusal)
        return refusal

    def check_size(self, size: int) -> None:
        """Make sure that the journal takes an add of ``size`` bytes.

        Raises:
            EntryTooLarge: it does not, however much room it has.
        """
        if size > self.max_add_bytes:
            self.count(_TOO_LARGE)
            raise EntryTooLarge(f"an add of {size} bytes exceeds the limit of {self.max_add_bytes}")

    def urgent_refusal(self) -> Refusal | None:
        """Why not even a fence or a LAC can be journaled now, or ``None``."""
        return JOURNAL_ROOM if self._journal.room_bytes(urgent=True) < BLOCK_BYTES // 2 else None

    def journal_takes(self, size: int, *, recovery: bool) -> bool:
        """Whether the journal has room for a batch of ``size`` bytes; ordinary ones leave a reserve."""
        return self._journal.room_bytes() >= (size if recovery else size + self._journal_reserve_bytes)

    def set_disk_full(self, disk_full: bool) -> None:
        """A checkpoint found no room, or found room again."""
        self.disk_full = disk_full

    def count(self, refusal: Refusal) -> None:
        """Remember that an add was refused."""
        self.refusals[refusal.reason] = self.refusals.get(refusal.reason, 0) + 1

    def take(self, size: int, recovery: bool) -> None:
        """A batch came in; its bytes are in flight until ``release``."""
        if recovery:
            self.recovery_bytes += size
        else:
            self.inflight_bytes += size

    def release(self, size: int, recovery: bool, seconds: float) -> None:
        """A batch was answered, so long after it was taken."""
        if recovery:
            self.recovery_bytes -= size
        else:
            self.inflight_bytes -= size
            self._last_seconds = seconds

    def with_hint(self, refusal: Refusal) -> Refusal:
        """A refusal of an ordinary add, with when half of those that are ahead of it should be done."""
        if refusal.code != Busy.wire_code:
            return refusal
        half_ms = min(MAX_RETRY_MS, int(self._last_seconds * 500))
        return refusal._replace(retry_after_ms=max(refusal.retry_after_ms, half_ms))

    def _ordinary_refusal(self, size: int, dirty_ledgers: int, beside: bool) -> Refusal | None:
        if self.closed_to_writers:
            return _READ_ONLY
        room = self._max_beside_bytes if beside else self.max_inflight_bytes
        if self.inflight_bytes and self.inflight_bytes + size > room:
            return _INFLIGHT
        if self._journal.oldest_queued_age_seconds() > self._max_queue_age_seconds:
            return _QUEUE_AGE
        if not self.journal_takes(size, recovery=False):
            return JOURNAL_ROOM
        if dirty_ledgers >= self.max_dirty_ledgers:
            return _LEDGERS
        return None

    def _recovery_refusal(self, size: int) -> Refusal | None:
        if self.recovery_bytes and self.recovery_bytes + size > self.max_recovery_bytes:
            return _INFLIGHT
        if size <= self.max_add_bytes and not self.journal_takes(size, recovery=True):
            return JOURNAL_ROOM
        return None
