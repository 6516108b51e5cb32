"""Restores the metadata store from an older copy at the end of a run, while all bookies are down.

An operator copies the store at some moment while clients work; after the audit the copy replaces the store. Then:

    I25  once all bookies serve, no ledger id that a bookie holds is assigned again
    I15  a ledger never returns entries of another ledger with the same id
    I1   ledgers whose metadata the copy has unchanged keep all confirmed entries
    I16  bookies drop nothing while the store is known to be an older copy, and no ledger that the copy lacks; after an
         operator approves the copy, they keep a ledger whose id was assigned again and then deleted

An older copy lacks later ledgers, deletions and moved replicas. So for ledgers with other fragments in the copy only
I15 is expected. Cookies of replaced disks stay those of now.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any, Final

from tallybook.client.client import Client
from tallybook.core.errors import Conflict, LedgerExists, OtherLedger, TallybookError, is_defect
from tallybook.core.ids import NO_ENTRY
from tallybook.metadata.ledger.model import LedgerMetadata
from tallybook.metadata.records.restored_store import RECORD, RestoreRecordStore, decode_restore_record
from tallybook.runtime.rng import Rng

from ..cluster.metadata import LATEST_SECONDS
from ..deterministic import SimClock
from ..faults.metadata_restore import MetadataCopy, copy_of, put_back
from ..workload.history import OperationKind
from ..workload.ledgers import CreatedLedger

if TYPE_CHECKING:
    from ..run import Universe

START_SECONDS: Final = 3.0
SERVING_SECONDS: Final = 60.0
ROUNDS: Final = 3
MAX_LEDGERS: Final = 1000
DOWN_SECONDS: Final = 1e6
NEW: Final = b"new %d"
"""The only entry of a ledger that is created after the restore."""


class Restoration:
    """Checks one cluster whose metadata store is replaced by an older copy.

    Args:
        known: confirmed entries, by ledger, for ledgers whose metadata are the same in the copy.
        moved: ledgers with other fragments in the copy; their entries need not be readable.
        forgotten: ledgers that the copy lacks and that bookies hold.
        entries: returns all payloads ever appended to a ledger, confirmed or not.
        password: of all ledgers.
        pause_seconds: time between two passes of the garbage collectors.
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
        self._oracle = universe.oracle
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
        """Ids that the copy lacks and that new ledgers got which were, or may have been, deleted."""

    async def run(self, copy: MetadataCopy) -> None:
        """Replace the store by the copy and check the cluster.

        Raises:
            InvariantBroken: an invariant was violated.
        """
        held = await self._held()
        for node in self._universe.nodes.values():
            (node.lose_power if self._rng.random() < 0.3 else node.kill)(DOWN_SECONDS)
        put_back(self._universe.metadata, copy)
        self._oracle.forget([*self._moved, *self._forgotten])
        await self._start()
        await self._take_new_ids()
        await self._read_all()
        await self._collect(held)

    async def _start(self) -> None:
        """Start the bookies in random order, with a client that works as soon as the first one serves."""
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
        """Create ledgers, some with ids that the copy lacks and bookies hold."""
        taken = iter(self._forgotten)
        async with self._universe.workload.extra_client("early") as early:
            for _ in range(self._rng.randint(0, 6)):
                chosen = next(taken, None) if self._rng.random() < 0.5 else None
                await self._refused_or(self._write_one(early.client, chosen))
                if chosen in self._new and self._rng.random() < 0.5:
                    await self._refused_or(self._delete(early.client, chosen))

    async def _write_one(self, client: Client, chosen: int | None) -> None:
        """Create a ledger, mostly with one entry, with the id ``chosen`` unless that is ``None``."""
        writer = await client.create_ledger(ensemble=1, write_quorum=1, ack_quorum=1, ledger_id=chosen)
        self._new[writer.id] = []
        if self._rng.random() < 0.7:
            await writer.append(NEW % writer.id)
            self._new[writer.id] = [NEW % writer.id]
            await writer.close()

    async def _delete(self, client: Client, ledger_id: int) -> None:
        """Delete a new ledger; bookies still hold an older one with its id."""
        del self._new[ledger_id]
        self._deleted_again.add(ledger_id)
        await client.delete_ledger(ledger_id)

    async def _take_new_ids(self) -> None:
        """Create ledgers while all bookies serve: their ids must be new (I25)."""
        before = set(self._new)
        async with self._universe.workload.extra_client("later") as later:
            for _ in range(3):
                await self._refused_or(self._write_as_new(later.client))
        again = sorted((set(self._new) - before) & set(self._forgotten))
        self._oracle.expect(not again, "I25", f"ids {again} are assigned again while all bookies serve")

    async def _write_as_new(self, client: Client) -> None:
        try:
            await self._write_one(client, None)
        except (LedgerExists, OtherLedger) as error:
            # A bookie that lost something may have forgotten which ledgers it held.
            known_by_all = not self._oracle.injected_damage.bookies()
            detail = f"an id is assigned again while all bookies serve: {error.message}"
            self._oracle.expect(not known_by_all, "I25", detail)

    async def _refused_or(self, writing: Coroutine[Any, Any, None]) -> None:
        """Run a write that may fail: a bookie that holds another ledger with this id must refuse it (I15)."""
        try:
            await writing
        except Conflict as error:
            self._oracle.violated("I15", f"a bookie mistakes a ledger for another one: {error.message}")
        except TallybookError as error:
            if is_defect(error):
                self._oracle.violated("defect", f"a client of an older copy met {error!r}")
            self._oracle.mark(f"restored store: {type(error).__name__}")

    async def _read_all(self) -> None:
        async with self._universe.workload.extra_client("reader after") as reading:
            for ledger_id, entries in self._known.items():
                await self._read(reading.client, ledger_id, entries, self._entries(ledger_id), self._password)
            for ledger_id in self._moved:
                await self._read(reading.client, ledger_id, None, self._entries(ledger_id), self._password)
            for ledger_id, entries in self._new.items():
                await self._read(reading.client, ledger_id, entries, {NEW % ledger_id}, b"")
        self._oracle.raise_violations()

    async def _read(
        self, client: Client, ledger_id: int, confirmed: list[bytes] | None, own: set[bytes], password: bytes
    ) -> None:
        """Read a ledger and check its entries.

        Args:
            confirmed: entries that it must start with; ``None`` if it need not be readable.
            own: payloads that may be read.
        """
        oracle = self._oracle
        try:
            reader = await client.open_ledger(ledger_id, password=password)
            last = reader.last_add_confirmed
            found = [entry.payload async for entry in reader.read(0, last)] if last > NO_ENTRY else []
        except OtherLedger:
            oracle.expect(
                not confirmed, "I1", f"ledger {ledger_id} has confirmed entries, and bookies report OtherLedger"
            )
            return
        except TallybookError as error:
            excused = confirmed is None and not is_defect(error)
            oracle.expect(excused, "I1", f"ledger {ledger_id} cannot be read after the store went back: {error!r}")
            return
        strange = [entry for entry in found if entry not in own]
        oracle.expect(not strange, "I15", f"ledger {ledger_id} is served entries of another one: {strange[:1]}")
        if confirmed is not None:
            lacking = found[: len(confirmed)] != confirmed
            oracle.expect(not lacking, "I1", f"ledger {ledger_id} lacks confirmed entries after the store went back")

    async def _collect(self, before: dict[str, set[int]]) -> None:
        """Run garbage collection: ledgers that the copy lacks stay; all stay if the restore was noticed (I16)."""
        record = self._universe.metadata.shared.records.get(RECORD)
        paused = record is not None and decode_restore_record(RECORD, record.value).pauses
        await self._rounds()
        self._oracle.mark("restored store: known to be an older copy" if paused else "restored store: not noticed")
        for name, held in (await self._held()).items():
            lost = sorted((before[name] if paused else before[name].intersection(self._forgotten)) - held)
            self._oracle.expect(not lost, "I16", f"{name} has dropped ledgers {lost} after the store went back")
        self._oracle.raise_violations()
        if self._deleted_again:
            await self._go_on(before)

    async def _go_on(self, before: dict[str, set[int]]) -> None:
        """Approve the older copy as an operator would: ledgers whose id was assigned again still stay (I16)."""
        store = self._universe.metadata.shared.client().store
        await RestoreRecordStore(store, SimClock(), self._rng).approve()
        await self._rounds()
        self._oracle.mark("restored store: approved, and an id was deleted again")
        for name, held in (await self._held()).items():
            lost = sorted((before[name] & self._deleted_again) - held)
            self._oracle.expect(not lost, "I16", f"{name} has dropped ledgers {lost}, although other ones were deleted")
        self._oracle.raise_violations()

    async def _rounds(self) -> None:
        """Run some garbage collection passes at every bookie."""
        for _ in range(ROUNDS):
            for node in self._universe.nodes.values():
                if node.bookie is not None:
                    await node.bookie.collect()
            await self._clock.sleep(self._pause_seconds)

    async def _held(self) -> dict[str, set[int]]:
        """Ledgers with batches at each bookie whose disk was not damaged."""
        found = {}
        for name, node in self._universe.nodes.items():
            if node.bookie is not None and not node.damaged:
                page = await node.bookie.held_ledgers(NO_ENTRY, MAX_LEDGERS)
                found[name] = {each.ledger_id for each in page.ledgers}
        return found


class OlderCopy:
    """The older copy of the metadata store of a run.

    Args:
        after_seconds: when to make it.
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
        """Replace the store by the copy, as the last step of the run.

        Raises:
            InvariantBroken: an invariant was violated.
        """
        universe, copy = self._universe, self._copy
        if copy is None:
            return
        for node in universe.nodes.values():
            node.start()  # the restart check has stopped one of them
        await universe.until(universe.all_serve, SERVING_SECONDS, "boot", "not every bookie came up in the end")
        await universe.world.clock.sleep(LATEST_SECONDS)
        made = {each.ledger_id: each for each in universe.workload.ledgers}
        then = {ledger_id: copy.versions[ledger_id][-1].value for ledger_id in copy.ledgers}
        now = {ledger_id: known.metadata for ledger_id, known in universe.oracle.ledgers.items()}
        same = {each for each in then.keys() & now.keys() if _is_where_it_was(then[each], now[each])}
        for ledger_id in same:
            known = universe.oracle.ledgers[ledger_id]
            known.metadata, known.recovered, known.written_to = then[ledger_id], False, None
        restoration = Restoration(
            universe,
            universe.world.rng.fork("restored"),
            known={each: self._confirmed(each) for each in sorted(same & made.keys())},
            moved=(then.keys() & now.keys() & made.keys()) - same,
            forgotten=[each for each in now.keys() - then.keys() if universe.oracle.ledgers[each].confirmed > NO_ENTRY],
            entries=self._appended,
            password=_password(made.values()),
            pause_seconds=pause_seconds,
        )
        universe.oracle.forget([each for each in now if each not in same])
        await restoration.run(copy._replace(cookies=universe.metadata.shared.cookies))

    def _confirmed(self, ledger_id: int) -> list[bytes]:
        appends = self._universe.history.confirmed.get(ledger_id, [])
        return [append.payload for append in sorted(appends, key=lambda each: each.entry_id)]

    def _appended(self, ledger_id: int) -> set[bytes]:
        operations = self._universe.history.operations
        return {
            each.payload for each in operations if each.kind is OperationKind.APPEND and each.ledger_id == ledger_id
        }


def _is_where_it_was(then: LedgerMetadata, now: LedgerMetadata) -> bool:
    """Whether the copy names the bookies that hold the entries now."""
    return then.fragments == now.fragments and not now.copies_released


def _password(made: Iterable[CreatedLedger]) -> bytes:
    """The password of the run: all ledgers have the same one, or none."""
    return next((each.password for each in made), b"")
