"""Planted bugs in the repair, and in how bookies take part in it."""

# A wrong function has the arguments of the correct one, and does not use all of them.
# ruff: noqa: ARG001

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, Final

from tallybook.bookie.ledgers import disposition
from tallybook.bookie.ledgers.disposition import LedgerDisposition
from tallybook.bookie.ledgers.over_replicated import OverReplicationPolicy
from tallybook.core.errors import PeerError
from tallybook.metadata.ledger.repaired import replace_member
from tallybook.metadata.store import Versioned
from tallybook.repair import copier, ledger_repair, needs
from tallybook.repair.copier import Copier, CopyResult
from tallybook.repair.ledger_repair import LedgerRepairer, RepairOrder, RepairResult
from tallybook.repair.needs import FragmentReplica

from .bug import Bug


def _named_before_copied(_right: Any) -> Any:
    async def replace(
        self: LedgerRepairer, current: Any, replica: Any, order: Any, done: Any, cannot_hold: Any = None
    ) -> Any:
        metadata = current.value
        target = await self._choose_target(metadata, replica, order, {})
        at = {"first_entry_id": replica.first, "position": replica.position}
        taken = partial(replace_member, **at, old=replica.bookie_id, new=target)
        changed = await self._updater.update(metadata.ledger_id, taken)
        await self._copier.complete(metadata, replica, target, lost=order.gone, on_copied=done.add_copied)
        return changed

    return replace


def _all_but_the_last(right: Any) -> Any:
    def assigned_ranges(quorum: Any, position: int, first: int, last: int) -> Iterator[Any]:
        yield from right(quorum, position, first, last - 1)

    return assigned_ranges


def _silence_is_completeness(right: Any) -> Any:
    async def complete(self: Copier, *args: Any, **named: Any) -> CopyResult:
        try:
            copied: CopyResult = await right(self, *args, **named)
        except PeerError:
            return CopyResult(0, 0, limbo=False)
        return copied

    return complete


def _limbo_ended_first(right: Any) -> Any:
    async def give_back(
        self: LedgerRepairer,
        current: Versioned,
        replica: FragmentReplica,
        order: RepairOrder,
        limbo: set[str],
        done: RepairResult,
        *,
        compared: bool,
    ) -> Versioned:
        if current.value.closed:
            await self._end_limbo(current.value, replica.bookie_id, done)
        given: Versioned = await right(self, current, replica, order, limbo, done, compared=compared)
        return given

    return give_back


def _named_nowhere(_right: Any) -> Any:
    def disposition_by(metadata: Any, bookie_id: str) -> LedgerDisposition:
        if metadata.copies_released:
            return LedgerDisposition.RELEASED
        named = any(bookie_id in fragment.bookies for fragment in metadata.fragments)
        return LedgerDisposition.KEPT if named else LedgerDisposition.UNNAMED

    return disposition_by


def _immediately(_right: Any) -> Any:
    def is_long_ago(self: OverReplicationPolicy, moment: float) -> bool:
        return True

    return is_long_ago


def _open_ones_left_alone(_right: Any) -> Any:
    def must_close_for_limbo(metadata: Any, covering: Any) -> bool:
        return False

    return must_close_for_limbo


def _writers_not_asked_for(right: Any) -> Any:
    def ends_for_what_members_say(order: RepairOrder, said: Any) -> bool:
        ends: bool = right(order, said)
        return ends or order.recover_if_abandoned

    return ends_for_what_members_say


REPAIR_BUGS: Final = {
    "named before it is copied": Bug(
        "a replacement bookie is named in the metadata before it has the copies",
        "I1 I10",
        [(LedgerRepairer, "_replace", _named_before_copied)],
        of_repairs=True,
    ),
    "repair leaves out the last entry": Bug(
        "a repair skips the last entry of each fragment",
        "I1 I10 L3",
        [(copier, "assigned_ranges", _all_but_the_last)],
        of_repairs=True,
    ),
    "silence taken for completeness": Bug(
        "a bookie that does not answer a repair counts as complete",
        "I1 I10 I11 L3",
        [(Copier, "complete", _silence_is_completeness), (Copier, "copy_all", _silence_is_completeness)],
        of_repairs=True,
    ),
    "limbo ended too early": Bug(
        "a repair ends a bookie's limbo before it has copied the missing entries",
        "I2 I11 I12",
        [(LedgerRepairer, "_restore_missing", _limbo_ended_first)],
        of_repairs=True,
    ),
    "open ledgers left in limbo": Bug(
        "a repair never recovers an open ledger with a bookie that lost its data",
        "L9",
        [(needs, "must_close_for_limbo", _open_ones_left_alone)],
        of_repairs=True,
    ),
    "writer taken for gone": Bug(
        "a repair closes an open ledger with missing copies although its writer is alive",
        "L11",
        [(ledger_repair, "_must_recover_now", _writers_not_asked_for)],
        of_repairs=True,
    ),
    "unnamed copies dropped at once": Bug(
        "a bookie drops over-replicated copies of open ledgers, and without a delay",
        "I1 I10 I11 I16",
        [(disposition, "_disposition_by", _named_nowhere), (OverReplicationPolicy, "_is_long_ago", _immediately)],
    ),
}
