"""Bugs planted in the repair, and in what bookies do about it; see ``bugs``."""

# A wrong function has the arguments of the right one, and does not look at all of them.
# ruff: noqa: ARG001

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, Final

from tallybook.bookie import fates
from tallybook.bookie.garbage import Fate
from tallybook.bookie.leftovers import Leftovers
from tallybook.core.errors import PeerError
from tallybook.metadata.repaired import replace_member
from tallybook.metadata.store import Versioned
from tallybook.repair import copier, mender, needs
from tallybook.repair.copier import Copied, Copier
from tallybook.repair.mender import Mended, Mender, Order
from tallybook.repair.needs import Place

from .bug import Bug


def _named_before_copied(_right: Any) -> Any:
    async def replace(self: Any, current: Any, place: Any, order: Any, done: Any, cannot_hold: Any = None) -> Any:
        metadata = current.value
        target = await self._target(metadata, place, order, {})
        at = {"first_entry_id": place.first, "position": place.position}
        taken = partial(replace_member, **at, old=place.bookie_id, new=target)
        changed = await self._updater.update(metadata.ledger_id, taken)
        await self._copier.complete(metadata, place, target, lost=order.gone, on_given=done.given)
        return changed

    return replace


def _all_but_the_last(right: Any) -> Any:
    def ranges_of(quorum: Any, position: int, first: int, last: int) -> Iterator[Any]:
        yield from right(quorum, position, first, last - 1)

    return ranges_of


def _silence_is_completeness(right: Any) -> Any:
    async def complete(self: Any, *args: Any, **named: Any) -> Copied:
        try:
            copied: Copied = await right(self, *args, **named)
        except PeerError:
            return Copied(0, 0, limbo=False)
        return copied

    return complete


def _limbo_ended_first(right: Any) -> Any:
    async def give_back(
        self: Mender, current: Versioned, place: Place, order: Order, limbo: set[str], done: Mended, *, compared: bool
    ) -> Versioned:
        if current.value.closed:
            await self._end_limbo(current.value, place.bookie_id, done)
        given: Versioned = await right(self, current, place, order, limbo, done, compared=compared)
        return given

    return give_back


def _named_nowhere(_right: Any) -> Any:
    def fate_by(metadata: Any, bookie_id: str) -> Fate:
        if metadata.copies_released:
            return Fate.RELEASED
        named = any(bookie_id in fragment.bookies for fragment in metadata.fragments)
        return Fate.KEPT if named else Fate.UNNAMED

    return fate_by


def _at_once(_right: Any) -> Any:
    def is_long_ago(self: Any, moment: float) -> bool:
        return True

    return is_long_ago


def _open_ones_left_alone(_right: Any) -> Any:
    def must_end_for_limbo(metadata: Any, covering: Any) -> bool:
        return False

    return must_end_for_limbo


def _writers_not_asked_for(right: Any) -> Any:
    def ends_for_what_members_say(order: Order, said: Any) -> bool:
        ends: bool = right(order, said)
        return ends or order.end_if_abandoned

    return ends_for_what_members_say


REPAIR_BUGS: Final = {
    "named before it is copied": Bug(
        "a bookie takes a lost place in the metadata before it has the copies",
        "I1 I10",
        [(Mender, "_replace", _named_before_copied)],
        of_repairs=True,
    ),
    "repair leaves out the last entry": Bug(
        "a repair does not look at the last entry of each fragment",
        "I1 I10 L3",
        [(copier, "ranges_of", _all_but_the_last)],
        of_repairs=True,
    ),
    "silence taken for completeness": Bug(
        "a bookie that does not tell a repair what it has is taken for one that has everything",
        "I1 I10 I11 L3",
        [(Copier, "complete", _silence_is_completeness), (Copier, "give_all", _silence_is_completeness)],
        of_repairs=True,
    ),
    "limbo ended too early": Bug(
        "a repair tells a bookie that it has everything before it gives it back",
        "I2 I11 I12",
        [(Mender, "_give_back", _limbo_ended_first)],
        of_repairs=True,
    ),
    "open ledgers left in limbo": Bug(
        "a repair never recovers an open ledger that names a bookie which lost its data",
        "L9",
        [(needs, "must_end_for_limbo", _open_ones_left_alone)],
        of_repairs=True,
    ),
    "writer taken for gone": Bug(
        "a repair ends a ledger that lacks copies where it grows, though its writer is there",
        "L11",
        [(mender, "_ends_for_what_members_say", _writers_not_asked_for)],
        of_repairs=True,
    ),
    "unnamed copies dropped at once": Bug(
        "a bookie drops copies that no metadata name, open or closed, and without a delay",
        "I1 I10 I11 I16",
        [(fates, "_fate_by", _named_nowhere), (Leftovers, "_is_long_ago", _at_once)],
    ),
}
