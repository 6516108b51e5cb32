"""Rebuilds an index from the entry logs.

The tables of the logs list every batch with its location, but not fences, keys, explicit LACs and deletions. So every
ledger is in limbo afterwards: its fence may be lost, and with a damaged log some of its entries. Dropped ledgers come
back if their batches are still in a log; the garbage collector drops them again, with the usual delays, limits and
approvals (gc/plan.py).

A batch may be found twice, after an interrupted compaction or a repair: the copy that passes its checks counts. If two
pass and differ, it is unknown which was acked: a dangling row replaces them, the answer is UNKNOWN, and a repair
restores the entries from other bookies. Batches after the durable end of a log may be torn, so they are verified before
they get a row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Final

from tallybook.core.coverage import sometimes
from tallybook.core.errors import DamagedFile, EntryCorrupt, EntryUnknown
from tallybook.core.ids import NO_ENTRY
from tallybook.runtime.logging import logger

from ..ledgers.state import LedgerRow, decode_row, encode_row
from ..storage.entry_log.format import TableRow
from ..storage.entry_log.logs import EntryLogs
from ..storage.index.port import MAX_FIND_ROWS, WRITE_BATCH_ROWS, Index
from ..storage.location import NOWHERE_LOG_ID, IndexRow, Location

_log = logger("bookie.index_rebuild")

PIECE_BATCHES: Final = WRITE_BATCH_ROWS // 2
"""Batches processed together: their rows and the states of their ledgers are one write batch."""


@dataclass
class RebuildReport:
    """The result of a rebuild."""

    logs: int = 0
    batches: int = 0
    """Batches that were given a row."""
    twice: int = 0
    """Batches that were found more than once."""
    torn: int = 0
    """Batches left out because a crash had torn them before they were durable."""
    damage: list[str] = field(default_factory=list)
    """Logs of which a part cannot be read."""
    conflicts: list[str] = field(default_factory=list)
    """Entries with different copies."""


class IndexRebuild:
    """Fills an empty index."""

    def __init__(self, index: Index, logs: EntryLogs) -> None:
        self._index = index
        self._logs = logs
        self.report = RebuildReport()

    async def run(self) -> RebuildReport:
        """Fill the index, and make it durable.

        Raises:
            DiskFailed, EntryUnknown: a log or the new index cannot be read or written.
            DiskFull: there is no space for the index.
        """
        for log_id in self._logs.log_ids:
            await self._add_log(log_id)
        await self._index.sync()
        return self.report

    # -- batches ------------------------------------------------------------------------------

    async def _add_log(self, log_id: int) -> None:
        piece: list[tuple[TableRow, IndexRow]] = []
        try:
            certain = await self._logs.certain_bytes(log_id)
            async with aclosing(self._logs.scan(log_id)) as batches:
                async for found, location in batches:
                    row = IndexRow(found.ledger_id, found.first_entry_id, location)
                    if location.offset + location.size > certain and await self._bytes(row) is None:
                        sometimes("rebuild: a crash has torn a batch")
                        self.report.torn += 1
                        continue
                    piece.append((found, row))
                    if len(piece) == PIECE_BATCHES:
                        await self._add(piece)
                        piece = []
        except DamagedFile as error:
            sometimes("rebuild: a part of an entry log is lost")
            _log.error("entries are missing from the new index", log_id=log_id, error=error.message)
            self.report.damage.append(error.message)
        await self._add(piece)
        self.report.logs += 1

    async def _add(self, piece: Sequence[tuple[TableRow, IndexRow]]) -> None:
        """Put rows for batches of one log, and states for their ledgers."""
        waiting: list[IndexRow] = []
        reached: dict[int, int] = {}
        """The last entry of each ledger in the pending rows."""
        for run in _runs([row for _, row in piece]):
            ledger_id, first, last = run[0].ledger_id, run[0].first_entry_id, run[-1].last_entry_id
            if first > reached.get(ledger_id, NO_ENTRY) and not await self._held(ledger_id, first, last):
                waiting += run
                reached[ledger_id] = last
                continue
            await self._put(waiting)
            waiting, reached = [], {}
            for row in run:
                await self._settle(row)
        await self._put(waiting, await self._states([found for found, _ in piece]))

    async def _put(self, rows: Sequence[IndexRow], states: dict[int, bytes] | None = None) -> None:
        await self._index.apply(rows, states or {})
        self.report.batches += len(rows)

    async def _held(self, ledger_id: int, first: int, last: int) -> list[IndexRow]:
        return await self._index.find_range(ledger_id, first, last, MAX_FIND_ROWS)

    async def _settle(self, row: IndexRow) -> None:
        """Put a row for a batch whose entries may have rows already."""
        held = await self._held(row.ledger_id, row.first_entry_id, row.last_entry_id)
        if not held:
            await self._put([row])
            return
        self.report.twice += 1
        if len(held) > 1 or (held[0].first_entry_id, held[0].last_entry_id) != (row.first_entry_id, row.last_entry_id):
            await self._replace_by_dangling(held, row)
        elif held[0].location.log_id != NOWHERE_LOG_ID:
            await self._choose(held[0], row)

    async def _choose(self, held: IndexRow, row: IndexRow) -> None:
        """Of two copies, keep the one that passes its checks; if both do and are equal, the later one."""
        found = await self._bytes(row)
        if found is None:
            return
        before = await self._bytes(held)
        if before is not None and before != found:
            await self._replace_by_dangling([held], row)
            return
        sometimes("rebuild: a batch is there twice")
        await self._index.apply([row], {})

    async def _replace_by_dangling(self, held: Sequence[IndexRow], row: IndexRow) -> None:
        """Replace different copies by dangling rows: it is unknown which one was acked."""
        where = ", ".join(f"log {each.location.log_id} at {each.location.offset}" for each in (*held, row))
        what = (
            f"ledger {row.ledger_id} has different copies of entries "
            f"{min(held[0].first_entry_id, row.first_entry_id)} to {max(held[-1].last_entry_id, row.last_entry_id)}, "
            f"in {where}: they are UNKNOWN until repaired"
        )
        sometimes("rebuild: copies of a batch differ")
        _log.error("copies differ: UNKNOWN until repaired", ledger_id=row.ledger_id, error=what)
        self.report.conflicts.append(what)
        await self._index.apply([*map(_dangling, held), *_gaps(held, row)], {})

    async def _bytes(self, row: IndexRow) -> bytes | None:
        """The batch, if it passes its checks."""
        try:
            return (await self._logs.read_many([row]))[0]
        except (EntryCorrupt, EntryUnknown) as error:
            _log.warning(
                "batch cannot be read",
                ledger_id=row.ledger_id,
                first_entry_id=row.first_entry_id,
                log_id=row.location.log_id,
                error=error.message,
            )
            return None

    async def _states(self, found: Sequence[TableRow]) -> dict[int, bytes]:
        """The states of the ledgers of these batches: in limbo, with the highest LAC found in a batch."""
        lacs: dict[int, int] = {}
        for row in found:
            lacs[row.ledger_id] = max(lacs.get(row.ledger_id, NO_ENTRY), row.lac)
        states: dict[int, bytes] = {}
        for ledger_id, lac in lacs.items():
            data = await self._index.load_state(ledger_id)
            known = None if data is None else decode_row(ledger_id, data)
            if known is None or lac > known.lac:
                states[ledger_id] = encode_row(ledger_id, replace(known or LedgerRow(limbo=True), lac=lac))
        return states


def _runs(rows: Sequence[IndexRow]) -> Iterator[Sequence[IndexRow]]:
    """Split ``rows`` where a batch does not follow the previous one."""
    start = 0
    for end in range(1, len(rows) + 1):
        if end == len(rows) or not _follows(rows[end - 1], rows[end]):
            yield rows[start:end]
            start = end


def _follows(row: IndexRow, other: IndexRow) -> bool:
    """Whether ``other`` begins with the entry after ``row``."""
    return (row.ledger_id, row.last_entry_id + 1) == (other.ledger_id, other.first_entry_id)


def _dangling(row: IndexRow) -> IndexRow:
    return _dangling_row(row, row.first_entry_id, row.last_entry_id)


def _gaps(held: Sequence[IndexRow], row: IndexRow) -> Iterator[IndexRow]:
    """Dangling rows for the entries of ``row`` that ``held`` does not have."""
    next_id = row.first_entry_id
    for each in held:
        if next_id < each.first_entry_id:
            yield _dangling_row(row, next_id, each.first_entry_id - 1)
        next_id = each.last_entry_id + 1
    if next_id <= row.last_entry_id:
        yield _dangling_row(row, next_id, row.last_entry_id)


def _dangling_row(row: IndexRow, first: int, last: int) -> IndexRow:
    return IndexRow(row.ledger_id, first, Location(NOWHERE_LOG_ID, 0, row.location.size, last - first + 1))
