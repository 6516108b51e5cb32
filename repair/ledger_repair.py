"""Repairs one ledger: recovers it if needed, copies what its bookies lack, and replaces lost and draining bookies.

The order is: copy, verify that the copies are complete, update the metadata. So an interrupted repair has changed
nothing that a reader can see, and is simply done again. Several processes may repair the same ledger at once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial

from tallybook.client.client import Client
from tallybook.client.placement.replacement import choose_replacements, replacement_candidates
from tallybook.client.presence import ask_members
from tallybook.core.answers import EntryRange, HeldAnswer
from tallybook.core.coverage import sometimes
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
from tallybook.core.ranges import assigned_ranges
from tallybook.core.settings.types import PlacementPolicy
from tallybook.metadata.ledger.model import LedgerMetadata, LedgerState
from tallybook.metadata.ledger.repaired import drop_stray_missed, remove_missed, replace_member
from tallybook.metadata.ledger_update import LedgerUpdater
from tallybook.metadata.store import BookieInfo, Versioned
from tallybook.runtime.logging import logger
from tallybook.runtime.rng import Rng

from .copier import Copier
from .needs import FragmentReplica, bytes_to_copy, must_close, replicas_of
from .open_ledgers import can_be_recovered

_log = logger("repair")


@dataclass(frozen=True, slots=True)
class RepairOrder:
    """How to repair a ledger.

    Args:
        leaving: bookies to be replaced.
        alive: bookies that stay: they can be replacements, and get back what they lack.
        gone: bookies of ``leaving`` that are not registered: sources that need not be waited for.
        thorough: ask every bookie what it holds, instead of trusting the metadata.
        recover_open: recover an open ledger if its last fragment names a bookie that leaves or may have lost copies.
        recover_if_abandoned: with ``recover_open``, recover an open ledger also if its last fragment lacks copies for
            another reason, provided that it has no writer.
    """

    leaving: frozenset[str]
    alive: Mapping[str, BookieInfo]
    thorough: bool
    recover_open: bool
    gone: frozenset[str] = frozenset()
    recover_if_abandoned: bool = False

    @property
    def reachable(self) -> frozenset[str]:
        """Registered bookies, including those that are being drained."""
        return self.leaving.difference(self.gone).union(self.alive)


@dataclass(slots=True)
class RepairResult:
    """The result of a repair, updated while the repair runs."""

    replaced: int = 0
    """Ensemble positions for which a bookie was replaced."""
    batches: int = 0
    copied_bytes: int = 0
    """Bytes of the copied batches."""
    errors: list[TallybookError] = field(default_factory=list)
    """Why some replicas are not repaired yet."""
    replicas_due: int = 0
    """Fragment replicas to check."""
    replicas_checked: int = 0
    """Of these, the ones that were checked, with or without success."""
    expected_bytes: int | None = None
    """About how much is to be copied; ``None``: it depends on what bookies hold."""

    def add_copied(self, size: int) -> None:
        """Count one more batch that was copied."""
        self.batches += 1
        self.copied_bytes += size

    @property
    def too_large(self) -> str:
        """The error if a batch is too large for every candidate bookie; empty if none is."""
        return next((error.message for error in self.errors if isinstance(error, EntryTooLarge)), "")

    @property
    def lost(self) -> bool:
        """Whether no good copy of an entry is left."""
        return any(isinstance(error, DataMissing) for error in self.errors)


class LedgerRepairer:
    """Repairs ledgers of one cluster.

    Args:
        client: for connections to bookies, and for ledger recoveries.
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

    async def repair(self, ledger_id: int, order: RepairOrder, done: RepairResult | None = None) -> RepairResult:
        """Repair what can be repaired now. Errors of single replicas are in ``RepairResult.errors``.

        Args:
            done: the result to fill, so that the caller can see the progress.

        Raises:
            MetadataUnavailable, MetadataConflict, MetadataOutcomeUnknown, DamagedFile: the metadata store does not
                answer, or the metadata cannot be read.
        """
        done = RepairResult() if done is None else done
        try:
            current = await self._read(ledger_id)
            if order.recover_open and not current.value.closed:
                current = await self._recover_if_needed(current, order, done)
            await self._repair_replicas(current, order, done)
        except NoSuchLedger as error:
            if await self._exists(ledger_id):
                # A bookie has a record of the deletion of a ledger that exists. An operator has to look into it.
                done.errors.append(error)
            else:
                sometimes("repair: the ledger was deleted meanwhile")
        return done

    async def _exists(self, ledger_id: int) -> bool:
        try:
            await self._read(ledger_id)
        except NoSuchLedger:
            return False
        return True

    async def _read(self, ledger_id: int) -> Versioned:
        return await self._updater.store.read_ledger(ledger_id, linearizable=True)

    async def _recover_if_needed(self, current: Versioned, order: RepairOrder, done: RepairResult) -> Versioned:
        """Recover an open ledger if that is necessary and possible; returns its current metadata."""
        metadata = current.value
        if metadata.state is not LedgerState.IN_RECOVERY:
            # The ledger may have a writer, which a recovery would fence.
            said = await ask_members(self._client.world.connections, metadata, order.reachable)
            if not _must_recover_now(order, said):
                if not must_close(metadata, order.leaving):
                    return current
                if not replacement_candidates(order.alive, metadata.last_fragment.bookies, order.leaving):
                    done.errors.append(
                        NotEnoughBookies(
                            f"ledger {metadata.ledger_id} stays open: no bookie can replace those that left it"
                        )
                    )
                    return current
            unknown = [name for name in metadata.last_fragment.bookies if not _has_all_it_held(said.get(name))]
            if not can_be_recovered(metadata, unknown):
                sometimes("repair: an open ledger that cannot be recovered is left to its writer")
                done.errors.append(
                    RecoveryFailed(
                        f"ledger {metadata.ledger_id} stays open, and is not recovered: {', '.join(unknown)} do not "
                        "answer, or may have lost their copies"
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
            # For example a ledger with a password: its users recover it when they open it.
            done.errors.append(error)
            return current
        return await self._read(metadata.ledger_id)

    async def _repair_replicas(self, current: Versioned, order: RepairOrder, done: RepairResult) -> None:
        metadata = current.value
        if metadata.copies_released:
            return
        incomplete: set[str] = set()
        limbo: set[str] = set()
        due = [replica for replica in replicas_of(metadata) if _is_due(metadata, replica, order)]
        done.replicas_due = len(due)
        done.expected_bytes = None if order.thorough else bytes_to_copy(metadata, order.leaving)
        for replica in due:
            try:
                if replica.bookie_id in order.leaving:
                    current = await self._replace(current, replica, order, done)
                elif order.thorough or _has_missed(current.value, replica):
                    current = await self._fill(current, replica, order, limbo, done)
            except NoSuchLedger:
                raise
            except TallybookError as error:
                if is_defect(error):
                    raise
                incomplete.add(replica.bookie_id)
                done.errors.append(error)
            done.replicas_checked += 1
        if drop_stray_missed(current.value) != current.value:
            # Clients of earlier versions left missed ranges of bookies that are in no ensemble; no repair of a replica
            # removes these.
            sometimes("repair: a missed range without a position is removed")
            current = await self._updater.update(metadata.ledger_id, drop_stray_missed, known=current)
        if order.thorough:
            # Without ``thorough`` a bookie may have unchecked replicas; a thorough task handles these.
            for bookie_id in sorted(limbo - incomplete):
                if _assignment_is_final(current.value, bookie_id):
                    await self._end_limbo(metadata, bookie_id, done)

    async def _fill(
        self, current: Versioned, replica: FragmentReplica, order: RepairOrder, limbo: set[str], done: RepairResult
    ) -> Versioned:
        """Copy to a bookie that stays what it lacks. Replace it if the batches are too large for it, or if its copies
        of entries that it missed differ from those of the other members."""
        try:
            try:
                compared = await self._compare_missed(current.value, replica, order, done)
            except Conflict as error:
                sometimes("repair: a member with other bytes is replaced")
                try:
                    return await self._replace(current, replica, order, done)
                except NotEnoughBookies as no_replacement:
                    raise error from no_replacement
            return await self._restore_missing(current, replica, order, limbo, done, compared=compared)
        except EntryTooLarge as error:
            # It was away when the ledger was created, so the writer did not know its largest batch size.
            sometimes("repair: a bookie that takes smaller batches than it lacks is replaced")
            return await self._replace(current, replica, order, done, cannot_hold=error)

    async def _compare_missed(
        self, metadata: LedgerMetadata, replica: FragmentReplica, order: RepairOrder, done: RepairResult
    ) -> bool:
        """Copy all entries that the bookie missed, according to the metadata, so that it compares those that it has.

        Returns:
            Whether there were missed entries and the bookie now has all of them.

        Raises:
            Conflict: its copies differ from those of the other members.
        """
        if not _has_missed(metadata, replica):
            return False
        try:
            missed = _missed(metadata, replica)
            await self._copier.verify_copies(metadata, replica, missed, lost=order.gone, on_copied=done.add_copied)
        except DataMissing:
            # It may have the only copy. Then the other members get that first, and a later repair compares.
            sometimes("repair: a missed range of a member cannot be compared")
            return False
        return True

    async def _restore_missing(
        self,
        current: Versioned,
        replica: FragmentReplica,
        order: RepairOrder,
        limbo: set[str],
        done: RepairResult,
        *,
        compared: bool,
    ) -> Versioned:
        """Copy to a bookie that stays what it lacks; add it to ``limbo`` if it is in limbo for this ledger.

        If its missed entries were ``compared``, also remove the missed range from the metadata.
        """
        metadata = current.value
        copied = await self._copier.complete(
            metadata, replica, replica.bookie_id, lost=order.gone, on_copied=done.add_copied
        )
        if copied.limbo:
            limbo.add(replica.bookie_id)
        if not compared:
            return current
        given = partial(remove_missed, bookie_id=replica.bookie_id, first=replica.first, last=replica.last)
        return await self._updater.update(metadata.ledger_id, given, known=current)

    async def _replace(
        self,
        current: Versioned,
        replica: FragmentReplica,
        order: RepairOrder,
        done: RepairResult,
        cannot_hold: EntryTooLarge | None = None,
    ) -> Versioned:
        """Replace the bookie of a replica: first copy, then update the metadata.

        Args:
            cannot_hold: why the present bookie cannot hold the batches, if it stays in the cluster.

        Raises:
            EntryTooLarge: the batches are too large for every candidate.
        """
        metadata = current.value
        target = await self._copy_to_replacement(metadata, replica, order, done, cannot_hold)
        taken = partial(
            replace_member, first_entry_id=replica.first, position=replica.position, old=replica.bookie_id, new=target
        )
        try:
            changed = await self._updater.update(metadata.ledger_id, taken, known=current)
        except InvalidArgument as error:
            # Another process has given the target another position of this fragment meanwhile.
            raise NotEnoughBookies(error.message) from error
        if target not in changed.value.fragment_of(replica.first).bookies:
            return changed  # another process has replaced the bookie by another one
        sometimes("repair: a bookie takes a lost position")
        done.replaced += 1
        # Before the metadata named it, its gc might have dropped the copies if this process was suspended for long.
        await self._copier.complete(
            metadata, replica, target, lost=order.gone, damaged_too=False, on_copied=done.add_copied
        )
        return changed

    async def _copy_to_replacement(
        self,
        metadata: LedgerMetadata,
        replica: FragmentReplica,
        order: RepairOrder,
        done: RepairResult,
        cannot_hold: EntryTooLarge | None,
    ) -> str:
        """Copy the replica to a replacement bookie, skipping candidates with a lower batch limit; returns its id."""
        too_small: dict[str, str] = {} if cannot_hold is None else {replica.bookie_id: cannot_hold.message}
        while True:
            target = await self._choose_target(metadata, replica, order, too_small)
            try:
                await self._copier.copy_all(metadata, replica, target, lost=order.gone, on_copied=done.add_copied)
            except EntryTooLarge as error:
                too_small[target] = error.message
            else:
                return target

    async def _choose_target(
        self, metadata: LedgerMetadata, replica: FragmentReplica, order: RepairOrder, too_small: Mapping[str, str]
    ) -> str:
        """Choose a replacement bookie; if possible, one with at least the batch limit of the present members.

        Args:
            too_small: bookies that refused a batch as too large, with their errors.

        Raises:
            NotEnoughBookies: there is no candidate.
            EntryTooLarge: there is no candidate but those in ``too_small``.
        """
        members = metadata.fragment_of(replica.first).bookies
        sizes = [await self._batch_bytes(name) for name in members if name in order.reachable and name not in too_small]
        # No batch is larger than the limit of its members, unless their limits were lowered since.
        wanted = min((size for size in sizes if size is not None), default=0)
        smaller: dict[str, int] = {}
        while True:
            target = self._replacement(metadata, replica, order, {*too_small, *smaller})
            if target is None:
                break
            size = await self._batch_bytes(target)
            if size is None or size >= wanted:
                return target
            smaller[target] = size
        if smaller:
            return max(smaller, key=lambda name: smaller[name])
        what = f"ledger {metadata.ledger_id} from entry {replica.first}: no bookie can replace {replica.bookie_id}"
        if too_small:
            raise EntryTooLarge(f"{what}: {'; '.join(too_small.values())}")
        raise NotEnoughBookies(what)

    async def _batch_bytes(self, bookie_id: str) -> int | None:
        """The bookie's limit for the size of a batch; ``None``: it does not answer."""
        try:
            return (await self._client.world.connections.get(bookie_id)).max_batch_bytes
        except TallybookError as error:
            if is_defect(error):
                raise
            return None

    def _replacement(
        self, metadata: LedgerMetadata, replica: FragmentReplica, order: RepairOrder, passed_over: Collection[str]
    ) -> str | None:
        chosen = choose_replacements(
            order.alive,
            metadata.fragment_of(replica.first).bookies,
            {replica.position},
            self._rng,
            write_quorum=metadata.quorum.write_quorum,
            excluded=order.leaving.union(passed_over),
            policy=self._placement,
        )
        return chosen.get(replica.position)

    async def _end_limbo(self, metadata: LedgerMetadata, bookie_id: str, done: RepairResult) -> None:
        try:
            connection = await self._client.world.connections.get(bookie_id)
            await connection.end_limbo(metadata.ledger_id, identity=metadata.identity)
        except NoSuchLedger:
            raise
        except TallybookError as error:
            if is_defect(error):
                raise
            done.errors.append(error)
        else:
            sometimes("repair: a ledger leaves limbo")


def _has_all_it_held(held: HeldAnswer | None) -> bool:
    """Whether a bookie answered, and is not in limbo."""
    return held is not None and not held.limbo


def _must_recover_now(order: RepairOrder, said: Mapping[str, HeldAnswer | None]) -> bool:
    """Whether an open ledger has to be recovered: a member that stays is in limbo, or, with ``recover_if_abandoned``,
    all members that stay say that no writer is attached. A member that does not answer counts for neither."""
    staying = [said[name] for name in said if name not in order.leaving]
    if any(held is not None and held.limbo for held in staying):
        sometimes("repair: an open ledger is ended because a bookie lost its part")
        return True
    gone = bool(staying) and all(held is not None and held.writer is False for held in staying)
    abandoned = order.recover_if_abandoned and gone
    if abandoned:
        sometimes("repair: an abandoned ledger is ended because its last fragment lacks copies")
    return abandoned


def _is_due(metadata: LedgerMetadata, replica: FragmentReplica, order: RepairOrder) -> bool:
    """Whether the repair has to check a replica.

    Not if its bookie is only away for a moment: the auditor decides when a bookie counts as lost.
    """
    if replica.bookie_id in order.leaving:
        return True
    return replica.bookie_id in order.alive and (order.thorough or _has_missed(metadata, replica))


def _assignment_is_final(metadata: LedgerMetadata, bookie_id: str) -> bool:
    """Whether no writer and no recovery can add to what the bookie is to hold."""
    grows_elsewhere = metadata.state is LedgerState.OPEN and bookie_id not in metadata.last_fragment.bookies
    return metadata.closed or grows_elsewhere


def _has_missed(metadata: LedgerMetadata, replica: FragmentReplica) -> bool:
    """Whether the bookie missed an entry of the replica, according to the metadata."""
    return any(
        entry.bookie_id == replica.bookie_id
        and entry.first_entry_id <= replica.last
        and (entry.last_entry_id is None or entry.last_entry_id >= replica.first)
        for entry in metadata.missed
    )


def _missed(metadata: LedgerMetadata, replica: FragmentReplica) -> Iterator[EntryRange]:
    """The entries of the replica that the bookie missed, according to the metadata."""
    for entry in metadata.missed:
        last = replica.last if entry.last_entry_id is None else min(entry.last_entry_id, replica.last)
        if entry.bookie_id == replica.bookie_id:
            yield from assigned_ranges(
                metadata.quorum, replica.position, max(entry.first_entry_id, replica.first), last
            )
