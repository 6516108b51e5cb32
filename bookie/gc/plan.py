"""Decides which ledgers a bookie may drop. Decisions only, no I/O.

A drop is permanent, so the evidence must be certain: no answer, or a damaged one, keeps the ledger. ``is_garbage`` has
the rule for each disposition, ``LedgerDisposition`` the meanings.

While the store is known to be an older copy (``store_check.py``), nothing is dropped: RELEASED and UNNAMED may no
longer be true. Once an operator has approved such a store, the delays of deleted and missing ledgers start again. A
pass that would drop a large share of all ledgers waits for an operator, too, as long as there is disk space
(docs/operate/runbook/metadata.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, assert_never

from ..ledgers.disposition import LedgerDisposition

MAX_SUSPECTS: Final = 100_000
"""Maximum ledgers found deleted or missing for the first time in one pass; others wait for later passes."""

FEW_LEDGERS: Final = 1_000
"""Up to this many may always be dropped in a pass: of few ledgers, a large share means nothing."""


@dataclass(frozen=True, slots=True)
class GcDelays:
    """Delays before ledgers without metadata are dropped, and the limit of one pass.

    Args:
        deleted_seconds: delay of a deleted ledger, unless the bookie is short of space.
        missing_seconds: minimum delay of a missing ledger.
        max_share: part of all ledgers, 0 to 1, that a pass may drop because they are deleted.
    """

    deleted_seconds: float
    missing_seconds: float
    max_share: float


class GarbagePolicy:
    """Decides pass by pass which ledgers are garbage.

    Args:
        delays: see there.
        max_suspects: see ``MAX_SUSPECTS``.

    Attributes:
        awaits_approval: whether this pass drops no deleted ledger, since they are a large share of all ledgers and an
            operator must approve it.
    """

    def __init__(self, delays: GcDelays, max_suspects: int = MAX_SUSPECTS) -> None:
        self._delays = delays
        self._max_suspects = max_suspects
        self._counter = 0
        self._now_seconds = 0.0
        self._short_of_space = False
        self._paused = False
        self._approved = False
        self._looked_at = 0
        self._before: dict[int, tuple[LedgerDisposition, float]] = {}
        """Ledgers that the previous pass found deleted or missing, and since when they are."""
        self._now: dict[int, tuple[LedgerDisposition, float]] = {}
        self.awaits_approval = False

    def begin(
        self,
        id_counter: int | None,
        now_seconds: float,
        *,
        short_of_space: bool,
        approved: bool = False,
    ) -> None:
        """Begin a pass.

        Args:
            id_counter: an upper bound of all ledger ids ever assigned; ``None`` if unknown.
            now_seconds: by a monotonic clock.
            short_of_space: drop deleted ledgers without delay.
            approved: an operator has approved that this pass drops what waits for that.
        """
        self._counter = 0 if id_counter is None else id_counter
        self._now_seconds = now_seconds
        self._short_of_space = short_of_space
        self._paused = False
        self._approved = approved
        deleted = sum(disposition is LedgerDisposition.DELETED for disposition, _ in self._now.values())
        many = deleted > max(FEW_LEDGERS, self._delays.max_share * self._looked_at)
        self.awaits_approval = many and not (self._approved or short_of_space)
        self._before, self._now = self._now, {}
        self._looked_at = 0

    def pause(self) -> None:
        """Drop nothing more in this pass: the metadata proved to be unreliable."""
        self._paused = True

    def forget(self) -> None:
        """Discard the findings of the earlier passes."""
        self._before = {}

    def is_garbage(self, ledger_id: int, disposition: LedgerDisposition) -> bool:
        """Whether the ledger may be dropped, given this disposition, which was looked up in this pass.

        - RELEASED: a verified copy of the whole ledger is in the archive, and ``offload/policy.py`` has decided that
          other copies are not needed. This is never revoked, so one answer suffices, even an old one.
        - KEPT, UNKNOWN: never.
        - UNNAMED: never here. The closed ledger names other bookies, since this one was replaced or drained;
          ``over_replicated.py`` decides about these copies.
        - DELETED: kept for a delay, unless the bookie is short of space, and for good if its metadata comes back.
        - MISSING, OTHER: rows were lost, or the store is an older copy of itself. An operator must approve the drop,
          and even then the ledger must have been missing for hours.
        """
        self._looked_at += 1
        match disposition:
            case LedgerDisposition.KEPT | LedgerDisposition.UNNAMED | LedgerDisposition.UNKNOWN:
                return False
            case LedgerDisposition.RELEASED:
                return not self._paused
            case LedgerDisposition.OTHER:
                disposition = LedgerDisposition.MISSING
            case LedgerDisposition.DELETED | LedgerDisposition.MISSING:
                pass
            case _:
                assert_never(disposition)
        if ledger_id >= self._counter:
            return False
        before = self._before.get(ledger_id)
        since = before[1] if before is not None and before[0] is disposition else self._now_seconds
        if len(self._now) < self._max_suspects:
            self._now[ledger_id] = disposition, since
        if self._paused or before is None or before[0] is not disposition:
            return False
        lasted = self._now_seconds - since
        if disposition is LedgerDisposition.MISSING:
            return self._approved and lasted >= self._delays.missing_seconds
        return not self.awaits_approval and (self._short_of_space or lasted >= self._delays.deleted_seconds)

    def count(self, disposition: LedgerDisposition) -> int:
        """Number of ledgers with this disposition that the last pass has met and not dropped."""
        return sum(each is disposition for each, _ in self._now.values())

    def due_at(self) -> float | None:
        """When an approved pass would drop some of the ledgers that this one has left; ``None``: never."""
        delays = {LedgerDisposition.MISSING: self._delays.missing_seconds}
        if self.awaits_approval:
            delays[LedgerDisposition.DELETED] = self._delays.deleted_seconds
        return min(
            (since + delays[disposition] for disposition, since in self._now.values() if disposition in delays),
            default=None,
        )

    def dropped(self, ledger_id: int) -> None:
        """Note that the ledger was dropped."""
        self._now.pop(ledger_id, None)
