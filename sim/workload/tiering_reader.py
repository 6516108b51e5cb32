"""Readers that read the first half of a ledger from bookies and the second half from the archive."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tallybook.client.reader.handle import LedgerReader
from tallybook.core.errors import TallybookError

from .history import LedgerEnd, Reading

if TYPE_CHECKING:
    from ..run import Universe
    from .ledgers import ClientProcess, CreatedLedger

MAX_READERS: Final = 3


@dataclass(frozen=True, slots=True)
class _Begun:
    """A reader that has read the entries before ``at``."""

    reader: LedgerReader
    reading: Reading
    at: int


@asynccontextmanager
async def read_across_release(universe: Universe) -> AsyncIterator[None]:
    """Read the first half of some ledgers before the block and the rest after it, in runs with an archive."""
    if universe.offloading is None:
        yield
        return
    async with universe.workload.extra_client("halfway") as client:
        begun = await _begin(universe, client)
        yield
        for each in begun:
            try:
                await _end(universe, each)
            except TallybookError as error:
                there = each.reader.id in universe.oracle.ledgers
                detail = f"ledger {each.reader.id} cannot be read any further from entry {each.at}: {error!r}"
                universe.oracle.expect(not there, "I17", detail)


async def _begin(universe: Universe, client: ClientProcess) -> list[_Begun]:
    begun: list[_Begun] = []
    for made in universe.workload.ledgers:
        known = universe.oracle.ledgers.get(made.ledger_id)
        if known is None or known.metadata.copies_released or known.metadata.last_entry_id < 1:
            continue
        if len(begun) == MAX_READERS:
            break
        try:
            begun.append(await _half(universe, client, made))
        except TallybookError as error:
            universe.oracle.mark(f"halfway: {type(error).__name__}")
    return begun


async def _half(universe: Universe, client: ClientProcess, made: CreatedLedger) -> _Begun:
    reader = await client.client.open_ledger(made.ledger_id, password=made.password, recover=False)
    reading = universe.history.reading(client.name, made.ledger_id)
    middle = (reader.last_add_confirmed + 1) // 2
    await _read(reader, reading, 0, middle - 1)
    return _Begun(reader, reading, middle)


async def _end(universe: Universe, begun: _Begun) -> None:
    reader = begun.reader
    dropped = not reader.metadata.copies_released
    await _read(reader, begun.reading, begun.at, reader.last_add_confirmed)
    begun.reading.done(LedgerEnd(reader.last_add_confirmed, reader.metadata.length))
    if dropped and reader.metadata.copies_released:
        universe.oracle.mark("halfway: read from bookies, and then from the archive")


async def _read(reader: LedgerReader, reading: Reading, first: int, last: int) -> None:
    async for entry in reader.read(first, last):
        reading.saw(entry.entry_id, entry.payload)
