"""What the bookies say of themselves: what they lost, and which copies they know to be damaged.

One that does not answer in time says nothing; whether it is lost is for the membership to say.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from tallybook.client.bookie_port import BookieConnection
from tallybook.client.ports import Connections
from tallybook.core.answers import BookieStatus, EntryRange
from tallybook.core.errors import TallybookError, is_defect
from tallybook.core.ids import MAX_ID
from tallybook.runtime.logging import logger

from .needs import LimboOf, Loss

_log = logger("repair")

PAGE: Final = 1_000
DAMAGED_PAGE: Final = 100
"""Of damaged copies: the bookie reads each one again before it tells of it."""
MOST_DAMAGED_LEDGERS: Final = 10_000
"""Ledgers with damaged copies that are looked at in one round; the rest follows once these are mended."""


class DamageAt(NamedTuple):
    """What a bookie knows to be damaged."""

    ledgers: Mapping[int, EntryRange]
    """Of each ledger, from the first entry of a damaged copy to the last one of any."""
    known_up_to: int
    """Nothing is damaged of other ledgers up to here; what is behind was not asked for."""

    def may_touch(self, ledger_id: int, first: int, last: int) -> bool:
        """Whether a copy of some of these entries may be damaged."""
        if ledger_id > self.known_up_to:
            return True
        known = self.ledgers.get(ledger_id)
        return known is not None and known.first <= last and known.last >= first


class BookieSurvey:
    """Asks all bookies. Remembers who has got everything back."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._settled: dict[str, Loss] = {}
        """What each bookie had said of which no ledger was in limbo any more."""
        self._states: dict[str, Loss] = {}
        """What each bookie said last."""
        self.statuses: dict[str, BookieStatus] = {}
        """What each one that answered said last."""

    async def look(self, names: Iterable[str]) -> None:
        """Ask them all how they are."""
        asked = sorted(names)
        self._states = {name: state for name, state in self._states.items() if name in asked}
        answers = await asyncio.gather(*map(self._status, asked))
        self.statuses = {name: status for name, status in zip(asked, answers, strict=True) if status is not None}

    @property
    def losses(self) -> dict[str, Loss]:
        """Who lost data and has not got all of it back, as far as is known."""
        return {name: loss for name, loss in self._states.items() if loss.events and self._settled.get(name) != loss}

    def directory(self, name: str) -> str:
        """The uuid of the directory of a bookie that answered."""
        return self._states[name].directory

    @property
    def damages(self) -> dict[str, int]:
        """How many damaged copies each one knows that answered. Some may be mended: it looks when it is asked which."""
        return {name: status.damaged_batches for name, status in self.statuses.items()}

    async def limbo(self) -> dict[str, LimboOf]:
        """Who may lack something of which ledgers."""
        found: dict[str, LimboOf] = {}
        losses = self.losses
        for name, status in self.statuses.items():
            if name in losses:
                mended = await self._mended(name)
                if mended is not None:
                    found[name] = LimboOf(status.limbo_below, mended)
        return found

    def settle(self, names: Iterable[str]) -> None:
        """They have got back all that ledgers name them for: they need not be asked again until they may lack more."""
        for name in names:
            self._settled[name] = self._states[name]

    async def damaged(self) -> dict[int, int]:
        """Ledgers of which a bookie knows a damaged copy, each with the last entry of one."""
        found: dict[int, int] = {}
        for damage in (await self.damaged_at()).values():
            for ledger_id, known in damage.ledgers.items():
                found[ledger_id] = max(known.last, found.get(ledger_id, known.last))
        return dict(sorted(found.items())[:MOST_DAMAGED_LEDGERS])

    async def damaged_at(self) -> dict[str, DamageAt]:
        """What each bookie that answered knows to be damaged. One that does not say is left out."""
        found: dict[str, DamageAt] = {}
        for name, status in self.statuses.items():
            damage = await self._damaged_at(name) if status.damaged_batches else DamageAt({}, MAX_ID)
            if damage is not None:
                found[name] = damage
        return found

    async def _status(self, name: str) -> BookieStatus | None:
        try:
            connection = await self._connections.get(name)
            status = await connection.status()
        except TallybookError as error:
            _check_no_defect(error)
            _log.info("a bookie does not say how it is", bookie_id=name, error=error.message)
            return None
        self._states[name] = Loss(connection.incarnation.directory_uuid, status.limbo_events, status.limbo_below)
        return status

    async def _mended(self, name: str) -> set[int] | None:
        """Ledgers that the bookie has got back in full; ``None`` if it does not answer."""
        mended: set[int] = set()
        after: int | None = -1
        try:
            connection = await self._connections.get(name)
            while after is not None:
                page = await connection.held_ledgers(after, PAGE)
                mended.update(held.ledger_id for held in page.ledgers if not held.limbo)
                after = page.next_after()
        except TallybookError as error:
            _check_no_defect(error)
            _log.info("a bookie does not say what it holds", bookie_id=name, error=error.message)
            return None
        return mended

    async def _damaged_at(self, name: str) -> DamageAt | None:
        try:
            return await _damage_at(await self._connections.get(name))
        except TallybookError as error:
            _check_no_defect(error)
            _log.info("a bookie does not say what is damaged", bookie_id=name, error=error.message)
            return None


def _check_no_defect(error: TallybookError) -> None:
    """A bookie that fails with any error keeps no other from being asked.

    Raises:
        InvariantViolation: ``error``, if it says that something is wrong with Tallybook itself.
    """
    if is_defect(error):
        raise error


async def _damage_at(connection: BookieConnection) -> DamageAt:
    found: dict[int, EntryRange] = {}
    after = (-1, -1)
    while len(found) < MOST_DAMAGED_LEDGERS:
        page = await connection.damaged(after, DAMAGED_PAGE)
        if not page:
            return DamageAt(found, MAX_ID)
        for batch in page:
            known = found.get(batch.ledger_id)
            first = batch.first_entry_id if known is None else known.first
            last = batch.last_entry_id if known is None else max(known.last, batch.last_entry_id)
            found[batch.ledger_id] = EntryRange(first, last)
        after = page[-1].ledger_id, page[-1].first_entry_id
    return DamageAt(found, after[0] - 1)
