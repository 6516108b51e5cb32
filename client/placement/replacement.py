"""Bookies to take the place of failed ones: alive, writable, not in the ensemble, and answering.

The membership may list a bookie that died a moment ago. So whoever is chosen is asked something
first: a ledger's metadata must not name, and its writer not wait for, one that is not there.

Where a whole rack went silent, most of those listed may hang. The search begins with one
candidate for each position, those that placement prefers. Who refuses is followed by the next one
at once; while nobody answers, more and more are asked beside those that are silent, and whoever
answers takes a position that is open. Once it has anybody it soon ends: a ledger may be able to
go on with that one, and who wants more searches again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from tallybook.core.config import ClientSettings
from tallybook.core.errors import EntryAbsent, TallybookError, is_defect
from tallybook.core.setting_types import PlacementPolicy
from tallybook.metadata.model import LedgerMetadata
from tallybook.metadata.store import BookieInfo, Membership, MembershipWatch
from tallybook.runtime.clock import Clock
from tallybook.runtime.rng import Rng

from .placement import choose_replacements
from .ports import Connections
from .quarantine import Quarantine, is_its_failure

FURTHER_S: Final = 0.05
"""Silence after which twice as many are asked at a time."""

MOST_AT_ONCE: Final = 32
"""How many are asked at a time, at most: a client that is cut off reaches nobody, however many it tries."""

SETTLE_S: Final = 0.2
"""How long a search goes on for the other positions after it has found somebody: one change is better than two."""


class Spares:
    """Finds replacements for one client's ledgers.

    Args:
        limits: told of the largest batch of each bookie that is asked.
    """

    def __init__(
        self,
        membership: Membership,
        connections: Connections,
        clock: Clock,
        rng: Rng,
        quarantine: Quarantine,
        settings: ClientSettings,
        limits: dict[str, int] | None = None,
    ) -> None:
        self._membership = membership
        self._connections = connections
        self._clock = clock
        self._rng = rng
        self._quarantine = quarantine
        self._limits = {} if limits is None else limits
        self._policy: PlacementPolicy = settings.placement
        self._patience_s = settings.connect_timeout_ms / 1000

    async def find(
        self,
        metadata: LedgerMetadata,
        ensemble: Sequence[str],
        positions: Sequence[int],
        *,
        excluded: Collection[str] = (),
        batch_bytes: int = 0,
    ) -> dict[int, str]:
        """Bookies for some of the ``positions`` of ``ensemble``, by position; for none only if nobody is to be had.

        Those left out may be found by another search, or not. It takes the connect timeout, or a few times that
        where very many hang, to find that there is nobody.

        Args:
            metadata: of the ledger that they are for.
            excluded: bookies that are not to be taken, whatever they answer.
            batch_bytes: of the largest batch that the replacement has to take: it has been sent, and cannot be cut.

        Raises:
            MetadataUnavailable, DamagedFile: who is alive cannot be told.
        """
        bookies = await self._membership.bookies()
        search = _Search(ensemble, positions, [*ensemble, *excluded], batch_bytes)
        try:
            async with asyncio.TaskGroup() as group:
                try:
                    await self._search(search, bookies, metadata, group)
                finally:
                    for asked in search.under_way:
                        # Not needed any more; it has done nothing wrong.
                        asked.cancel()
        except ExceptionGroup as several:
            # A defect. Whoever searches is to see it as it is.
            raise several.exceptions[0] from several
        return search.found

    def watch(self) -> MembershipWatch:
        """Tells when it may be worth while to look again."""
        return self._membership.watch()

    def avoid(self, bookie_id: str) -> None:
        """It failed here: every ledger of this client chooses others for a while, where there are any."""
        self._quarantine.failed(bookie_id, self._clock.monotonic())

    async def _search(
        self, search: _Search, bookies: Mapping[str, BookieInfo], metadata: LedgerMetadata, group: asyncio.TaskGroup
    ) -> None:
        """Ask, until every position is filled, or it is time to be content, or there is nobody left to ask."""
        width = 1
        content_at = float("inf")
        while open_positions := search.open_positions:
            wanted = min(width * len(open_positions), MOST_AT_ONCE) - len(search.under_way)
            for bookie_id, position in self._candidates(search, bookies, metadata, wanted):
                search.tried.append(bookie_id)
                asking = group.create_task(self._answers(bookie_id, metadata, search.batch_bytes))
                search.under_way[asking] = (bookie_id, position)
            left_s = content_at - self._clock.monotonic()
            if left_s <= 0 or not search.under_way:
                return
            await asyncio.wait(
                search.under_way, timeout=min(FURTHER_S, left_s), return_when=asyncio.FIRST_COMPLETED
            )  # fmt: skip
            if not search.hear():
                width *= 2
            elif search.found and content_at == float("inf"):
                content_at = self._clock.monotonic() + SETTLE_S

    def _candidates(
        self, search: _Search, bookies: Mapping[str, BookieInfo], metadata: LedgerMetadata, wanted: int
    ) -> list[tuple[str, int]]:
        """Up to ``wanted`` bookies not asked yet, the preferred ones first, each with the position it suits."""
        chosen: list[tuple[str, int]] = []
        while len(chosen) < wanted:
            next_ones = choose_replacements(
                bookies,
                search.ensemble,
                search.open_positions,
                self._rng,
                excluded=(*search.tried, *(bookie_id for bookie_id, _ in chosen)),
                quarantined=self._quarantine.now(self._clock.monotonic()),
                write_quorum=metadata.quorum.write_quorum,
                policy=self._policy,
            )
            if not next_ones:
                break
            chosen += [(bookie_id, position) for position, bookie_id in next_ones.items()]
        return chosen[:wanted]

    async def _answers(self, bookie_id: str, metadata: LedgerMetadata, batch_bytes: int) -> bool:
        """Whether it takes such batches, and answers in time: a connection may be old, and its bookie hang."""
        try:
            async with asyncio.timeout(self._patience_s):
                connection = await self._connections.get(bookie_id)
                self._limits[bookie_id] = connection.max_batch_bytes
                if connection.max_batch_bytes < batch_bytes:
                    return False
                await connection.read_lac(metadata.ledger_id, identity=metadata.identity)
        except EntryAbsent:
            return True
        except TimeoutError:
            self.avoid(bookie_id)
            return False
        except TallybookError as error:
            if is_defect(error):
                raise
            # Whatever its reason: it is no replacement now.
            if is_its_failure(error):
                self.avoid(bookie_id)
            return False
        return True


class _Search:
    """One search: whom it has asked, and whom it has found."""

    def __init__(
        self, ensemble: Sequence[str], positions: Sequence[int], excluded: Sequence[str], batch_bytes: int
    ) -> None:
        self._members = tuple(ensemble)
        self._positions = sorted(set(positions))
        self.found: dict[int, str] = {}
        self.tried = list(excluded)
        self.batch_bytes = batch_bytes
        self.under_way: dict[asyncio.Task[bool], tuple[str, int]] = {}
        """Who has not answered yet, in the order in which they were asked, and the position that each suits best."""

    @property
    def open_positions(self) -> list[int]:
        """Those that nobody was found for."""
        return [position for position in self._positions if position not in self.found]

    @property
    def ensemble(self) -> list[str]:
        """As it would be with those that were found."""
        return [self.found.get(position, member) for position, member in enumerate(self._members)]

    def hear(self) -> bool:
        """Give those that serve a position, the preferred ones first; whether there was any answer at all."""
        answered = [(asked, *self.under_way[asked]) for asked in self.under_way if asked.done()]
        for asked, bookie_id, suits in answered:
            del self.under_way[asked]
            if asked.result() and (left := self.open_positions):
                self.found[suits if suits in left else left[0]] = bookie_id
        return bool(answered)
