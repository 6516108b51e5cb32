"""Probes replacement candidates for an ensemble change: each must answer before the metadata names it.

``replacement.choose_replacements`` decides which bookies are candidates, and in which order. The membership may list a
bookie that died a moment ago, so every candidate is probed with a request.

If a whole rack went silent, most listed bookies may hang. The search starts with one candidate for each position, as
placement prefers. A candidate that refuses is followed by the next one at once. While none answers, more and more are
probed in parallel, and one that answers takes an open position. Soon after the first success the search ends: the
ledger may be able to continue, and the caller may search again for the other positions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from tallybook.core.errors import EntryAbsent, TallybookError, is_defect
from tallybook.core.settings import ClientSettings
from tallybook.core.settings.types import PlacementPolicy
from tallybook.metadata.ledger.model import LedgerMetadata
from tallybook.metadata.store import BookieInfo, Membership, MembershipWatch
from tallybook.runtime.clock import Clock
from tallybook.runtime.rng import Rng

from ..ports import Connections
from .quarantine import Quarantine, is_its_failure
from .replacement import choose_replacements

HEDGE_S: Final = 0.05
"""Silence after which the number of parallel probes doubles."""

MAX_CONCURRENCY: Final = 32
"""Parallel probes at most: a client that is cut off reaches no bookie, however many it tries."""

SETTLE_S: Final = 0.2
"""How long a search continues for other positions after its first success: one ensemble change is better than two."""


class ReplacementFinder:
    """Finds replacement bookies for the ledgers of one client.

    Args:
        limits: receives the batch limit of each probed bookie.
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
        self._timeout_s = settings.connect_timeout_ms / 1000

    async def find(
        self,
        metadata: LedgerMetadata,
        ensemble: Sequence[str],
        positions: Sequence[int],
        *,
        excluded: Collection[str] = (),
        batch_bytes: int = 0,
    ) -> dict[int, str]:
        """Find bookies for some of the ``positions`` of ``ensemble``; empty only if no candidate responds.

        Another search may find bookies for the remaining positions. A search that finds none takes the connect
        timeout, or a few times that if very many bookies hang.

        Args:
            metadata: the ledger's metadata.
            excluded: bookies that must not be chosen.
            batch_bytes: size of the largest sent batch, which cannot be cut; a replacement must be able to take it.

        Raises:
            MetadataUnavailable, DamagedFile: the registered bookies cannot be listed.
        """
        bookies = await self._membership.bookies()
        search = _ReplacementSearch(ensemble, positions, [*ensemble, *excluded], batch_bytes)
        try:
            async with asyncio.TaskGroup() as group:
                try:
                    await self._search(search, bookies, metadata, group)
                finally:
                    for probe in search.in_flight:
                        probe.cancel()
        except ExceptionGroup as several:
            # A defect: raise it unwrapped.
            raise several.exceptions[0] from several
        return search.found

    def watch(self) -> MembershipWatch:
        """A membership watch: a change may make another search worthwhile."""
        return self._membership.watch()

    def avoid(self, bookie_id: str) -> None:
        """Quarantine a bookie: all ledgers of this client avoid it for a while, if there are others."""
        self._quarantine.failed(bookie_id, self._clock.monotonic())

    async def _search(
        self,
        search: _ReplacementSearch,
        bookies: Mapping[str, BookieInfo],
        metadata: LedgerMetadata,
        group: asyncio.TaskGroup,
    ) -> None:
        """Probe until every position is filled, or ``SETTLE_S`` after the first success, or no candidate is left."""
        width = 1
        ends_at = float("inf")
        while open_positions := search.open_positions:
            wanted = min(width * len(open_positions), MAX_CONCURRENCY) - len(search.in_flight)
            for bookie_id, position in self._candidates(search, bookies, metadata, wanted):
                search.tried.append(bookie_id)
                probe = group.create_task(self._answers(bookie_id, metadata, search.batch_bytes))
                search.in_flight[probe] = (bookie_id, position)
            left_s = ends_at - self._clock.monotonic()
            if left_s <= 0 or not search.in_flight:
                return
            await asyncio.wait(
                search.in_flight, timeout=min(HEDGE_S, left_s), return_when=asyncio.FIRST_COMPLETED
            )  # fmt: skip
            if not search.collect():
                width *= 2
            elif search.found and ends_at == float("inf"):
                ends_at = self._clock.monotonic() + SETTLE_S

    def _candidates(
        self, search: _ReplacementSearch, bookies: Mapping[str, BookieInfo], metadata: LedgerMetadata, wanted: int
    ) -> list[tuple[str, int]]:
        """Up to ``wanted`` bookies not probed yet, the preferred ones first, each with its best position."""
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
        """Whether a bookie takes such batches, and answers in time: an open connection does not prove that."""
        try:
            async with asyncio.timeout(self._timeout_s):
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
            if is_its_failure(error):
                self.avoid(bookie_id)
            return False
        return True


class _ReplacementSearch:
    """The state of one search: probes in flight, bookies tried, replacements found."""

    def __init__(
        self, ensemble: Sequence[str], positions: Sequence[int], excluded: Sequence[str], batch_bytes: int
    ) -> None:
        self._members = tuple(ensemble)
        self._positions = sorted(set(positions))
        self.found: dict[int, str] = {}
        self.tried = list(excluded)
        self.batch_bytes = batch_bytes
        self.in_flight: dict[asyncio.Task[bool], tuple[str, int]] = {}
        """Unanswered probes in order, each with its bookie and that bookie's best position."""

    @property
    def open_positions(self) -> list[int]:
        """Positions without a replacement."""
        return [position for position in self._positions if position not in self.found]

    @property
    def ensemble(self) -> list[str]:
        """The ensemble with the replacements found so far."""
        return [self.found.get(position, member) for position, member in enumerate(self._members)]

    def collect(self) -> bool:
        """Assign bookies whose probe succeeded to positions; return whether any probe has ended."""
        ended = [(probe, *self.in_flight[probe]) for probe in self.in_flight if probe.done()]
        for probe, bookie_id, best in ended:
            del self.in_flight[probe]
            if probe.result() and (left := self.open_positions):
                self.found[best if best in left else left[0]] = bookie_id
        return bool(ended)
