"""The metadata store goes back to an older copy of itself, at the end of a run, while all bookies are down.

An operator copies the store at some moment while clients work, and after everything has been compared puts the copy in
its place. Then must hold:

    I25  once all bookies serve, no id of a ledger that a bookie holds is handed out again
    I15  a ledger is never served the entries of another one of the same id
    I1   what the copy says of as it is has all entries that were confirmed
    I16  bookies drop nothing while the store is known to be an older copy, and nothing that it has forgotten; nor, once
         an operator goes on with it, a ledger whose id was handed out again, and deleted

A copy loses by nature what was created since, deletions, and where copies are that have moved since: of ledgers whose
fragments the copy knows otherwise only I15 is expected. Cookies of disks that were replaced since are those of now.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any, Final

from tallybook.client.client import Client
from tallybook.core.errors import Conflict, LedgerExists, OtherLedger, TallybookError, is_defect
from tallybook.core.ids import NO_ENTRY
from tallybook.metadata.behind import RECORD, BehindRecord, decode_behind
from tallybook.metadata.model import LedgerMetadata
from tallybook.runtime.deterministic import SimClock
from tallybook.runtime.rng import Rng

from .history import Kind
from .metadata import LATEST_SECONDS
from .metadata_copy import MetadataCopy, copy_of, put_back
from .workload import MadeLedger

if TYPE_CHECKING:
    from .run import Universe

START_SECONDS: Final = 3.0
SERVING_SECONDS: Final = 60.0
ROUNDS: Final = 3
MOST_LEDGERS: Final = 1000
DOWN_SECONDS: Final = 1e6
NEW: Final = b"new %d"
"""The only entry of a ledger of a client that is there early."""


class Restoration:
    """One cluster after its store went back.

    Args:
        known: entries that were confirmed, by ledger, of those that the store still knows as they are.
        moved: ledgers that the store knows otherwise than they are; nothing of them need be there.
        forgotten: ledgers that the store has forgotten, and that bookies hold.
        entries: all that was ever appended to a ledger, confirmed or not.
        pause_seconds: from one round of the garbage collectors to the next.
    """

    def __init__(
        self,
        universe: Universe,
        rng: Rng,
        *,
        known: dict[int, list[bytes]],
        moved: Iterable[int] = (),
        forgotten: Iterable[int],
        entries: Callable[[int], set[bytes]],
        password: bytes = b"",
        pause_seconds: float,
    ) -> None:
        self._universe = universe
        self._god = universe.god
        self._clock = universe.world.clock
        self._rng = rng
        self._known = known
        self._moved = sorted(moved)
        self._forgotten = sorted(forgotten)
        self._entries = entries
        self._password = password
        self._pause_seconds = pause_seconds
        self._new: dict[int, list[bytes]] = {}
        self._deleted_again: set[int] = set()
        """Ids that the store had forgotten, of new ledgers that were deleted, or may have been."""

    async def run(self, copy: MetadataCopy) -> None:
        """Put the copy in the place of the store, and look at what comes of it.

        Raises:
            InvariantBroken: something was seen that must not be.
        """
        held = await self._held()
        for node in self._universe.nodes.values():
            (node.lose_power if self._rng.random() < 0.3 else node.kill)(DOWN_SECONDS)
        put_back(self._universe.metadata, copy)
        self._god.forget([*self._moved, *self._forgotten])
        await self._start()
        await self._take_new_ids()
        await self._read_all()
        await self._collect(held)

    async def _start(self) -> None:
        """Start the bookies, in any order. A client is there as soon as one of them is."""
        nodes = list(self._universe.nodes.values())
        for node in nodes:
            node.start_in(START_SECONDS * self._rng.random())
        await self._universe.until(
            lambda: any(node.ready for node in nodes), SERVING_SECONDS, "boot", "no bookie came up on the older copy"
        )
        await self._use_the_first_ids()
        detail = "not every bookie came up on the older copy"
        await self._universe.until(self._universe.all_serve, SERVING_SECONDS, "boot", detail)

    async def _use_the_first_ids(self) -> None:
        """Create ledgers, some under ids that were taken before the store went back."""
        taken = iter(self._forgotten)
        async with self._universe.workload.guest("early") as early:
            for _ in range(self._rng.randint(0, 6)):
                chosen = next(taken, None) if self._rng.random() < 0.5 else None
                await self._refused_or(self._write_one(early.client, chosen))
                if chosen in self._new and self._rng.random() < 0.5:
                    await self._refused_or(self._delete(early.client, chosen))

    async def _write_one(self, client: Client, chosen: int | None) -> None:
        """A ledger, in most cases with one entry, under a certain id unless that is ``None``."""
        writer = await client.create_ledger(ensemble=1, write_quorum=1, ack_quorum=1, ledger_id=chosen)
        self._new[writer.id] = []
        if self._rng.random() < 0.7:
            await writer.append(NEW % writer.id)
            self._new[writer.id] = [NEW % writer.id]
            await writer.close()

    async def _delete(self, client: Client, ledger_id: int) -> None:
        """One of those that were created early: an older one of its id is still held by bookies."""
        del self._new[ledger_id]
        self._deleted_again.add(ledger_id)
        await client.delete_ledger(ledger_id)

    async def _take_new_ids(self) -> None:
        """All bookies serve: from now on ids are new."""
        before = set(self._new)
        async with self._universe.workload.guest("later") as later:
            for _ in range(3):
                await self._refused_or(self._write_as_new(later.client))
        again = sorted((set(self._new) - before) & set(self._forgotten))
        self._god.expect(not again, "I25", f"ids {again} are handed out again while all bookies serve")

    async def _write_as_new(self, client: Client) -> None:
        try:
            await self._write_one(client, None)
        except (LedgerExists, OtherLedger) as error:
            # A bookie that lost something may have forgotten which ledgers it held.
            known_by_all = not self._god.harms.bookies()
            detail = f"an id is handed out again while all bookies serve: {error.message}"
            self._god.expect(not known_by_all, "I25", detail)

    async def _refused_or(self, writing: Coroutine[Any, Any, None]) -> None:
        """Write, or be refused: a bookie that holds another ledger of this id takes none of it."""
        try:
            await writing
        except Conflict as error:
            self._god.violated("I15", f"a bookie takes a ledger for another one: {error.message}")
        except TallybookError as error:
            if is_defect(error):
                self._god.violated("defect", f"a client of an older copy met {error!r}")
            self._god.mark(f"restored store: {type(error).__name__}")

    async def _read_all(self) -> None:
        async with self._universe.workload.guest("reader after") as reading:
            for ledger_id, entries in self._known.items():
                await self._read(reading.client, ledger_id, entries, self._entries(ledger_id), self._password)
            for ledger_id in self._moved:
                await self._read(reading.client, ledger_id, None, self._entries(ledger_id), self._password)
            for ledger_id, entries in self._new.items():
                await self._read(reading.client, ledger_id, entries, {NEW % ledger_id}, b"")
        self._god.raise_violations()

    async def _read(
        self, client: Client, ledger_id: int, confirmed: list[bytes] | None, own: set[bytes], password: bytes
    ) -> None:
        """A ledger, by its own entries; ``confirmed``: what it has to begin with; ``None``: it need not be there."""
        god = self._god
        try:
            reader = await client.open_ledger(ledger_id, password=password)
            last = reader.last_add_confirmed
            found = [entry.payload async for entry in reader.read(0, last)] if last > NO_ENTRY else []
        except OtherLedger:
            god.expect(not confirmed, "I1", f"ledger {ledger_id} has acked entries, and is said to be another one")
            return
        except TallybookError as error:
            excused = confirmed is None and not is_defect(error)
            god.expect(excused, "I1", f"ledger {ledger_id} cannot be read after the store went back: {error!r}")
            return
        strange = [entry for entry in found if entry not in own]
        god.expect(not strange, "I15", f"ledger {ledger_id} is served entries of another one: {strange[:1]}")
        if confirmed is not None:
            lacking = found[: len(confirmed)] != confirmed
            god.expect(not lacking, "I1", f"ledger {ledger_id} lacks confirmed entries after the store went back")

    async def _collect(self, before: dict[str, set[int]]) -> None:
        """Round after round: nothing goes that the store has forgotten; where that is known, nothing at all."""
        record = self._universe.metadata.shared.records.get(RECORD)
        paused = record is not None and decode_behind(RECORD, record.value).pauses
        await self._rounds()
        self._god.mark("restored store: known to be an older copy" if paused else "restored store: not noticed")
        for name, held in (await self._held()).items():
            lost = sorted((before[name] if paused else before[name].intersection(self._forgotten)) - held)
            self._god.expect(not lost, "I16", f"{name} has dropped ledgers {lost} after the store went back")
        self._god.raise_violations()
        if self._deleted_again:
            await self._go_on(before)

    async def _go_on(self, before: dict[str, set[int]]) -> None:
        """An operator goes on with the older copy: what it says of ledgers counts again, and of no others."""
        store = self._universe.metadata.shared.client().store
        await BehindRecord(store, SimClock(), self._rng).approve()
        await self._rounds()
        self._god.mark("restored store: gone on with, and an id was deleted again")
        for name, held in (await self._held()).items():
            lost = sorted((before[name] & self._deleted_again) - held)
            self._god.expect(not lost, "I16", f"{name} has dropped ledgers {lost}, of which others were deleted")
        self._god.raise_violations()

    async def _rounds(self) -> None:
        """Some rounds of the garbage collector of every bookie."""
        for _ in range(ROUNDS):
            for node in self._universe.nodes.values():
                if node.bookie is not None:
                    await node.bookie.collect()
            await self._clock.sleep(self._pause_seconds)

    async def _held(self) -> dict[str, set[int]]:
        """The ledgers with batches at each bookie to whose disk nothing was done."""
        found = {}
        for name, node in self._universe.nodes.items():
            if node.bookie is not None and not node.damaged:
                page = await node.bookie.held_ledgers(NO_ENTRY, MOST_LEDGERS)
                found[name] = {each.ledger_id for each in page.ledgers}
        return found


class OlderCopy:
    """The copy of the store that a run goes back to.

    Args:
        after_seconds: when it is made.
    """

    def __init__(self, universe: Universe, after_seconds: float) -> None:
        self._universe = universe
        self._after_seconds = after_seconds
        self._copy: MetadataCopy | None = None

    async def make(self) -> None:
        """Copy the store while clients work."""
        await self._universe.world.clock.sleep(self._after_seconds)
        self._copy = copy_of(self._universe.metadata)

    async def restore(self, pause_seconds: float) -> None:
        """Put the copy in the place of the store, when all else is over.

        Raises:
            InvariantBroken: something was seen that must not be.
        """
        universe, copy = self._universe, self._copy
        if copy is None:
            return
        for node in universe.nodes.values():
            node.start()  # one of them was ended by the last check
        await universe.until(universe.all_serve, SERVING_SECONDS, "boot", "not every bookie came up in the end")
        await universe.world.clock.sleep(LATEST_SECONDS)
        made = {each.ledger_id: each for each in universe.workload.ledgers}
        then = {ledger_id: copy.versions[ledger_id][-1].value for ledger_id in copy.ledgers}
        now = {ledger_id: known.metadata for ledger_id, known in universe.god.ledgers.items()}
        same = {each for each in then.keys() & now.keys() if _is_where_it_was(then[each], now[each])}
        for ledger_id in same:
            known = universe.god.ledgers[ledger_id]
            known.metadata, known.recovered, known.written_to = then[ledger_id], False, None
        restoration = Restoration(
            universe,
            universe.world.rng.fork("restored"),
            known={each: self._confirmed(each) for each in sorted(same & made.keys())},
            moved=(then.keys() & now.keys() & made.keys()) - same,
            forgotten=[each for each in now.keys() - then.keys() if universe.god.ledgers[each].told > NO_ENTRY],
            entries=self._appended,
            password=_password(made.values()),
            pause_seconds=pause_seconds,
        )
        universe.god.forget([each for each in now if each not in same])
        await restoration.run(copy._replace(cookies=universe.metadata.shared.cookies))

    def _confirmed(self, ledger_id: int) -> list[bytes]:
        appends = self._universe.history.confirmed.get(ledger_id, [])
        return [append.payload for append in sorted(appends, key=lambda each: each.entry_id)]

    def _appended(self, ledger_id: int) -> set[bytes]:
        operations = self._universe.history.operations
        return {each.payload for each in operations if each.kind is Kind.APPEND and each.ledger_id == ledger_id}


def _is_where_it_was(then: LedgerMetadata, now: LedgerMetadata) -> bool:
    """Whether the copy names the bookies that have the entries now."""
    return then.fragments == now.fragments and not now.copies_released


def _password(made: Iterable[MadeLedger]) -> bytes:
    """Of all ledgers of a run; they have the same, or none."""
    return next((each.password for each in made), b"")
