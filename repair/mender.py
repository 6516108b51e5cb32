"""Mends one ledger: ends it where that must be, gives its bookies what they lack, and lets others take lost places.

Copies come first, then the look that finds them complete, then the metadata: so whatever is cut off in between has
changed nothing that a reader could see, and is simply done again. Any number may mend the same ledger at once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial

from tallybook.client.client import Client
from tallybook.client.placement import choose_replacements, replacement_candidates
from tallybook.client.presence import ask_members
from tallybook.core.answers import EntryRange, HeldAnswer
from tallybook.core.errors import (
    Conflict,
    DataMissing,
    EntryTooLarge,
    InvalidArgument,
    NoSuchLedger,
    NotEnoughBookies,
    RecoveryFailed,
    TallybookError,
    is_defect,
)
from tallybook.core.marks import sometimes
from tallybook.core.ranges import ranges_of
from tallybook.core.setting_types import PlacementPolicy
from tallybook.metadata.model import LedgerMetadata, LedgerState
from tallybook.metadata.repaired import copies_given_back, replace_member, without_strays
from tallybook.metadata.store import BookieInfo, Versioned
from tallybook.metadata.update import LedgerUpdater
from tallybook.runtime.logging import logger
from tallybook.runtime.rng import Rng

from .copier import Copier
from .needs import Place, bytes_to_copy, must_end, places_of
from .open_lacking import can_be_recovered

_log = logger("repair")


@dataclass(frozen=True, slots=True)
class Order:
    """What is to be done, and with whom.

    Args:
        leaving: whose places others are to take.
        alive: who can take them, and who can be given what it lacks.
        gone: those of ``leaving`` who are not there: nobody waits for what they might have.
        thorough: look at what every bookie holds, not only at what the metadata say is missing.
        end: recover the ledger if its last fragment names a bookie that leaves, or one that may have lost its part.
        end_if_abandoned: with ``end``, recover it also where its last fragment lacks copies for another reason, if no
            writer has it attached.
    """

    leaving: frozenset[str]
    alive: Mapping[str, BookieInfo]
    thorough: bool
    end: bool
    gone: frozenset[str] = frozenset()
    end_if_abandoned: bool = False

    @property
    def there(self) -> frozenset[str]:
        """Bookies that can be asked: also those that are only to be emptied."""
        return self.leaving.difference(self.gone).union(self.alive)


@dataclass(slots=True)
class Mended:
    """What came of it, and, while it goes on, what has until now."""

    places: int = 0
    """Places that another bookie took."""
    batches: int = 0
    size: int = 0
    """Bytes of the batches that bookies were given."""
    left: list[TallybookError] = field(default_factory=list)
    """Why some places are not mended yet."""
    places_due: int = 0
    """Bookies' parts in its fragments that are to be looked at."""
    places_seen: int = 0
    """Of those, the ones that were, whatever came of it."""
    expected_bytes: int | None = None
    """What is to be copied, about; ``None``: only what bookies say that they hold can tell."""

    def given(self, size: int) -> None:
        """A bookie was given one batch more."""
        self.batches += 1
        self.size += size

    @property
    def too_large(self) -> str:
        """Why a bookie cannot hold the ledger's batches, and no other one can; empty: there is no such reason."""
        return next((error.message for error in self.left if isinstance(error, EntryTooLarge)), "")

    @property
    def lost(self) -> bool:
        """Whether an entry is left nowhere."""
        return any(isinstance(error, DataMissing) for error in self.left)


class Mender:
    """Mends ledgers of one cluster.

    Args:
        client: for its connections, and for recoveries.
    """

    def __init__(
        self,
        client: Client,
        updater: LedgerUpdater,
        copier: Copier,
        rng: Rng,
        placement: PlacementPolicy = "rack_aware",
    ) -> None:
        self._client = client
        self._updater = updater
        self._copier = copier
        self._rng = rng
        self._placement = placement

    async def mend(self, ledger_id: int, order: Order, done: Mended | None = None) -> Mended:
        """Do what can be done for one ledger now. What cannot be is told, and leaves the rest of it no worse.

        Args:
            done: where to note what was done, for who looks meanwhile.

        Raises:
            MetadataUnavailable, MetadataConflict, MetadataOutcomeUnknown, DamagedFile: the metadata do not answer, or
                cannot be read.
        """
        done = Mended() if done is None else done
        try:
            current = await self._read(ledger_id)
            if order.end and not current.value.closed:
                current = await self._ended(current, order, done)
            await self._mend_places(current, order, done)
        except NoSuchLedger as error:
            if await self._is_there(ledger_id):
                # A bookie says so, of a ledger that is there: it was told wrongly, and for ever. People must look.
                done.left.append(error)
            else:
                sometimes("repair: the ledger was deleted meanwhile")
        return done

    async def _is_there(self, ledger_id: int) -> bool:
        try:
            await self._read(ledger_id)
        except NoSuchLedger:
            return False
        return True

    async def _read(self, ledger_id: int) -> Versioned:
        return await self._updater.store.read_ledger(ledger_id, linearizable=True)

    async def _ended(self, current: Versioned, order: Order, done: Mended) -> Versioned:
        """The ledger, recovered; or as it is, where that cannot be, or need not."""
        metadata = current.value
        if metadata.state is not LedgerState.IN_RECOVERY:
            # Its writer is there, perhaps, and may go on where a recovery would only put an end to that.
            said = await ask_members(self._client.world.connections, metadata, order.there)
            if not _ends_for_what_members_say(order, said):
                if not must_end(metadata, order.leaving):
                    return current
                if not replacement_candidates(order.alive, metadata.last_fragment.bookies, order.leaving):
                    done.left.append(
                        NotEnoughBookies(
                            f"ledger {metadata.ledger_id} stays open: nobody could take the place of who left it"
                        )
                    )
                    return current
            unknown = [name for name in metadata.last_fragment.bookies if not _knows(said.get(name))]
            if not can_be_recovered(metadata, unknown):
                sometimes("repair: an open ledger that cannot be recovered is left to its writer")
                done.left.append(
                    RecoveryFailed(
                        f"ledger {metadata.ledger_id} stays open, and is not recovered: {', '.join(unknown)} do not "
                        "answer, or may have lost what they held of it"
                    )
                )
                return current
        try:
            await self._client.recover_ledger(metadata.ledger_id)
        except NoSuchLedger:
            raise
        except TallybookError as error:
            if is_defect(error):
                raise
            # A password that only its users know: they recover it when they open it.
            done.left.append(error)
            return current
        return await self._read(metadata.ledger_id)

    async def _mend_places(self, current: Versioned, order: Order, done: Mended) -> None:
        metadata = current.value
        if metadata.copies_released:
            return
        incomplete: set[str] = set()
        limbo: set[str] = set()
        due = [place for place in places_of(metadata) if _is_due(metadata, place, order)]
        done.places_due = len(due)
        done.expected_bytes = None if order.thorough else bytes_to_copy(metadata, order.leaving)
        for place in due:
            try:
                if place.bookie_id in order.leaving:
                    current = await self._replace(current, place, order, done)
                elif order.thorough or _has_missed(current.value, place):
                    current = await self._filled(current, place, order, limbo, done)
            except NoSuchLedger:
                raise
            except TallybookError as error:
                if is_defect(error):
                    raise
                incomplete.add(place.bookie_id)
                done.left.append(error)
            done.places_seen += 1
        if without_strays(current.value) != current.value:
            # As clients of earlier versions left them: no place that is mended takes such a range away.
            sometimes("repair: a missed range of no place is taken away")
            current = await self._updater.update(metadata.ledger_id, without_strays, known=current)
        if order.thorough:
            # Otherwise a bookie may have places that were not looked at: the auditor sends somebody who looks at all.
            for bookie_id in sorted(limbo - incomplete):
                if _has_all_its_places(current.value, bookie_id):
                    await self._end_limbo(metadata, bookie_id, done)

    async def _filled(self, current: Versioned, place: Place, order: Order, limbo: set[str], done: Mended) -> Versioned:
        """Give a bookie that stays what it lacks; another one takes its place where it does not take such batches, or
        has other bytes where it lacks something on record."""
        try:
            try:
                compared = await self._compared(current.value, place, order, done)
            except Conflict as error:
                sometimes("repair: a member with other bytes is replaced")
                try:
                    return await self._replace(current, place, order, done)
                except NotEnoughBookies as nobody:
                    raise error from nobody
            return await self._give_back(current, place, order, limbo, done, compared=compared)
        except EntryTooLarge as error:
            # It was away when the ledger was created, so its writer did not know how much it takes.
            sometimes("repair: a bookie that takes smaller batches than it lacks is replaced")
            return await self._replace(current, place, order, done, cannot_hold=error)

    async def _compared(self, metadata: LedgerMetadata, place: Place, order: Order, done: Mended) -> bool:
        """Give a bookie what it lacks on record, also what it has of that; whether there was any, and it has all of it.

        Raises:
            Conflict: it has other bytes than the other members.
        """
        if not _has_missed(metadata, place):
            return False
        try:
            missed = _missed(metadata, place)
            await self._copier.prove(metadata, place, missed, lost=order.gone, on_given=done.given)
        except DataMissing:
            # It may have the only copy: then others are given that first, and it is compared later.
            sometimes("repair: what a member lacks on record cannot be compared")
            return False
        return True

    async def _give_back(
        self, current: Versioned, place: Place, order: Order, limbo: set[str], done: Mended, *, compared: bool
    ) -> Versioned:
        """Give a bookie that stays what it lacks; add it to ``limbo`` if it could not say what that was.

        Where what it missed was ``compared``, it has missed none of that from then on.
        """
        metadata = current.value
        copied = await self._copier.complete(metadata, place, place.bookie_id, lost=order.gone, on_given=done.given)
        if copied.limbo:
            limbo.add(place.bookie_id)
        if not compared:
            return current
        given = partial(copies_given_back, bookie_id=place.bookie_id, first=place.first, last=place.last)
        return await self._updater.update(metadata.ledger_id, given, known=current)

    async def _replace(
        self,
        current: Versioned,
        place: Place,
        order: Order,
        done: Mended,
        cannot_hold: EntryTooLarge | None = None,
    ) -> Versioned:
        """Let another bookie take a place: first the copies, then the metadata.

        Args:
            cannot_hold: why the bookie that has the place cannot keep it, if it stays.

        Raises:
            EntryTooLarge: no bookie takes the batches.
        """
        metadata = current.value
        target = await self._given_all(metadata, place, order, done, cannot_hold)
        taken = partial(
            replace_member, first_entry_id=place.first, position=place.position, old=place.bookie_id, new=target
        )
        try:
            changed = await self._updater.update(metadata.ledger_id, taken, known=current)
        except InvalidArgument as error:
            # Somebody else has given it another place of this fragment meanwhile.
            raise NotEnoughBookies(error.message) from error
        if target not in changed.value.fragment_of(place.first).bookies:
            return changed  # somebody else was first, with another one
        sometimes("repair: a bookie takes a lost place")
        done.places += 1
        # Until it was named, it might have dropped them, had this process slept for long: now it keeps what it has.
        await self._copier.complete(metadata, place, target, lost=order.gone, damaged_too=False, on_given=done.given)
        return changed

    async def _given_all(
        self, metadata: LedgerMetadata, place: Place, order: Order, done: Mended, cannot_hold: EntryTooLarge | None
    ) -> str:
        """A bookie that has got all copies of a place; each that takes smaller batches only is passed over."""
        too_small: dict[str, str] = {} if cannot_hold is None else {place.bookie_id: cannot_hold.message}
        while True:
            target = await self._target(metadata, place, order, too_small)
            try:
                await self._copier.give_all(metadata, place, target, lost=order.gone, on_given=done.given)
            except EntryTooLarge as error:
                too_small[target] = error.message
            else:
                return target

    async def _target(self, metadata: LedgerMetadata, place: Place, order: Order, too_small: Mapping[str, str]) -> str:
        """A bookie to take a place, rather one that takes batches as large as the members do.

        Args:
            too_small: bookies that do not take its batches, and why.

        Raises:
            NotEnoughBookies: there is none.
            EntryTooLarge: there is none but these.
        """
        members = metadata.fragment_of(place.first).bookies
        sizes = [await self._batch_bytes(name) for name in members if name in order.there and name not in too_small]
        # No batch is larger than its members took, unless they take smaller ones by now.
        wanted = min((size for size in sizes if size is not None), default=0)
        smaller: dict[str, int] = {}
        while True:
            target = self._replacement(metadata, place, order, {*too_small, *smaller})
            if target is None:
                break
            size = await self._batch_bytes(target)
            if size is None or size >= wanted:
                return target
            smaller[target] = size
        if smaller:
            return max(smaller, key=lambda name: smaller[name])
        what = f"ledger {metadata.ledger_id} from entry {place.first}: nobody can take the place of {place.bookie_id}"
        if too_small:
            raise EntryTooLarge(f"{what}: {'; '.join(too_small.values())}")
        raise NotEnoughBookies(what)

    async def _batch_bytes(self, bookie_id: str) -> int | None:
        """The largest batch that a bookie takes; ``None``: it does not answer."""
        try:
            return (await self._client.world.connections.get(bookie_id)).max_batch_bytes
        except TallybookError as error:
            if is_defect(error):
                raise
            return None

    def _replacement(
        self, metadata: LedgerMetadata, place: Place, order: Order, passed_over: Collection[str]
    ) -> str | None:
        chosen = choose_replacements(
            order.alive,
            metadata.fragment_of(place.first).bookies,
            {place.position},
            self._rng,
            write_quorum=metadata.quorum.write_quorum,
            excluded=order.leaving.union(passed_over),
            policy=self._placement,
        )
        return chosen.get(place.position)

    async def _end_limbo(self, metadata: LedgerMetadata, bookie_id: str, done: Mended) -> None:
        try:
            connection = await self._client.world.connections.get(bookie_id)
            await connection.end_limbo(metadata.ledger_id, identity=metadata.identity)
        except NoSuchLedger:
            raise
        except TallybookError as error:
            if is_defect(error):
                raise
            done.left.append(error)
        else:
            sometimes("repair: a ledger leaves limbo")


def _knows(held: HeldAnswer | None) -> bool:
    """Whether a bookie answers, and has lost nothing of what it held."""
    return held is not None and not held.limbo


def _ends_for_what_members_say(order: Order, said: Mapping[str, HeldAnswer | None]) -> bool:
    """Whether a bookie that stays says that it may have lost some of the last fragment; or, where that is asked for,
    all of them say that no writer is there. Silence says nothing."""
    staying = [said[name] for name in said if name not in order.leaving]
    if any(held is not None and held.limbo for held in staying):
        sometimes("repair: an open ledger is ended because a bookie lost its part")
        return True
    gone = bool(staying) and all(held is not None and held.writer is False for held in staying)
    abandoned = order.end_if_abandoned and gone
    if abandoned:
        sometimes("repair: an abandoned ledger is ended because its last fragment lacks copies")
    return abandoned


def _is_due(metadata: LedgerMetadata, place: Place, order: Order) -> bool:
    """Whether a place is to be looked at.

    A bookie that does not answer is no finding: how long it may be away is for the auditor to say.
    """
    if place.bookie_id in order.leaving:
        return True
    return place.bookie_id in order.alive and (order.thorough or _has_missed(metadata, place))


def _has_all_its_places(metadata: LedgerMetadata, bookie_id: str) -> bool:
    """Whether nobody adds to what the bookie is to hold: neither a writer nor a recovery is at work there."""
    grows_elsewhere = metadata.state is LedgerState.OPEN and bookie_id not in metadata.last_fragment.bookies
    return metadata.closed or grows_elsewhere


def _has_missed(metadata: LedgerMetadata, place: Place) -> bool:
    """Whether the metadata say that the bookie was not there for some entry of the place."""
    return any(
        entry.bookie_id == place.bookie_id
        and entry.first_entry_id <= place.last
        and (entry.last_entry_id is None or entry.last_entry_id >= place.first)
        for entry in metadata.missed
    )


def _missed(metadata: LedgerMetadata, place: Place) -> Iterator[EntryRange]:
    """The entries of the place for which the bookie was not there, as the metadata say."""
    for entry in metadata.missed:
        last = place.last if entry.last_entry_id is None else min(entry.last_entry_id, place.last)
        if entry.bookie_id == place.bookie_id:
            yield from ranges_of(metadata.quorum, place.position, max(entry.first_entry_id, place.first), last)
