"""Bookies to take the place of failed ones: alive, writable, not in the ensemble, and answering.

The membership may list a bookie that died a moment ago. So whoever is chosen is connected to
first: a ledger's metadata must not name, and its writer not wait for, one that is not there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence

from tallybook.core.config import ClientSettings, PlacementPolicy
from tallybook.core.errors import EntryAbsent, TallybookError, is_defect
from tallybook.metadata.model import LedgerMetadata
from tallybook.metadata.store import Membership, MembershipWatch
from tallybook.runtime.clock import Clock
from tallybook.runtime.rng import Rng

from .placement import choose_replacements
from .ports import Connections
from .quarantine import Quarantine


class Spares:
    """Finds replacements for one client's ledgers."""

    def __init__(
        self,
        membership: Membership,
        connections: Connections,
        clock: Clock,
        rng: Rng,
        quarantine: Quarantine,
        settings: ClientSettings,
    ) -> None:
        self._membership = membership
        self._connections = connections
        self._clock = clock
        self._rng = rng
        self._quarantine = quarantine
        self._policy: PlacementPolicy = settings.placement
        self._patience_s = settings.connect_timeout_ms / 1000

    async def find(
        self,
        metadata: LedgerMetadata,
        ensemble: Sequence[str],
        positions: Sequence[int],
        *,
        excluded: Collection[str] = (),
    ) -> dict[int, str]:
        """Bookies for as many of the ``positions`` of ``ensemble`` as there are any for, by position.

        Args:
            metadata: of the ledger that they are for.
            excluded: bookies that are not to be taken, whatever they answer.

        Raises:
            MetadataUnavailable, DamagedFile: who is alive cannot be told.
        """
        found: dict[int, str] = {}
        tried = list(excluded)
        while open_positions := [position for position in positions if position not in found]:
            filled = [found.get(position, bookie_id) for position, bookie_id in enumerate(ensemble)]
            chosen = choose_replacements(
                await self._membership.bookies(),
                filled,
                open_positions,
                self._rng,
                excluded=(*ensemble, *tried),
                quarantined=self._quarantine.now(self._clock.monotonic()),
                write_quorum=metadata.quorum.write_quorum,
                policy=self._policy,
            )
            if not chosen:
                break
            asked = (self._answers(bookie_id, metadata.ledger_id) for bookie_id in chosen.values())
            answers = await asyncio.gather(*asked)
            tried += chosen.values()
            for (position, bookie_id), answers_now in zip(chosen.items(), answers, strict=True):
                if answers_now:
                    found[position] = bookie_id
        return found

    def watch(self) -> MembershipWatch:
        """Tells when it may be worth while to look again."""
        return self._membership.watch()

    def avoid(self, bookie_id: str) -> None:
        """It failed here: every ledger of this client chooses others for a while, where there are any."""
        self._quarantine.failed(bookie_id, self._clock.monotonic())

    async def _answers(self, bookie_id: str, ledger_id: int) -> bool:
        """Whether it says something of the ledger in time: a connection may be old, and its bookie hang."""
        try:
            async with asyncio.timeout(self._patience_s):
                connection = await self._connections.get(bookie_id)
                await connection.read_lac(ledger_id)
        except EntryAbsent:
            return True
        except (TallybookError, TimeoutError) as error:
            if isinstance(error, TallybookError) and is_defect(error):
                raise
            # Whatever its reason: it is no replacement now.
            self.avoid(bookie_id)
            return False
        return True
