"""Drain progress: how many ledgers still name a bookie, and whether it may be switched off.

It may be switched off after a complete walk over all ledgers found no reference to it, if the walk began when clients
could not choose the bookie any more. Ledgers whose copies the bookies may drop do not count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tallybook.client.placement.replacement import replacement_candidates
from tallybook.core.errors import CallerError, MetadataUnavailable, NoSuchBookie
from tallybook.core.quantities import counted
from tallybook.metadata.records.bookie_modes import RequestedMode, request_mode, requested_mode, requested_modes
from tallybook.metadata.store import BookieMode, Membership, MetadataStore
from tallybook.runtime.clock import Clock
from tallybook.runtime.rng import Rng

from ..ledger_walk import MAX_NAMED, WalkFindings, all_ledgers


@dataclass(frozen=True, slots=True)
class BookieReferences:
    """The ledgers that name a bookie and rely on it."""

    bookie_id: str
    ledgers: int
    growing: int
    """Of these, open ledgers that name it in their last fragment. They name it until they are closed or replace it."""
    complete: bool
    """Whether the walk was complete, so that no other ledger names it."""
    chosen: bool
    """Whether clients could still choose it for new ledgers when the walk began."""
    first_ids: tuple[int, ...] = ()
    """The ids of the first ``MAX_NAMED`` of these ledgers."""

    @property
    def may_be_removed(self) -> bool:
        """Whether it may be switched off for good."""
        return self.complete and not self.chosen and not self.ledgers


def some_ids(first_ids: Sequence[int | str], count: int) -> str:
    """Ids as text: the first ones, and how many more there are."""
    named = ", ".join(map(str, first_ids))
    more = count - len(first_ids)
    return f"{named} and {more:,} more" if more > 0 else named


async def count_references(store: MetadataStore, membership: Membership, bookie_id: str) -> BookieReferences:
    """Walk over all ledgers and count those that name the bookie.

    Raises:
        MetadataUnavailable: the store does not answer.
    """
    # Read before the walk: if the bookie is read-only now, clients cannot choose it during the walk.
    info = (await membership.bookies()).get(bookie_id)
    chosen = info is not None and info.mode is BookieMode.WRITABLE
    findings = WalkFindings()
    ledgers = growing = 0
    first_ids: list[int] = []
    async for metadata in all_ledgers(store, findings):
        if metadata.copies_released:
            continue
        if any(bookie_id in fragment.bookies for fragment in metadata.fragments):
            ledgers += 1
            if len(first_ids) < MAX_NAMED:
                first_ids.append(metadata.ledger_id)
        growing += not metadata.closed and bookie_id in metadata.last_fragment.bookies
    complete = findings.complete and not findings.unreadable
    return BookieReferences(bookie_id, ledgers, growing, complete, chosen, tuple(first_ids))


async def check_can_end(
    store: MetadataStore, membership: Membership, bookie_id: str, *, force_option: str = "--force"
) -> None:
    """Before a drain: check that the other bookies can replace the bookie in all of its ledgers.

    Args:
        force_option: how the caller drains without this check, for the message.

    Raises:
        CallerError: the drain, or another one in progress, would not end: too few writable bookies are left for a
            ledger, or a ledger's metadata cannot be decoded.
        MetadataUnavailable: the store does not answer, or does not list all ledgers.
    """
    modes = await requested_modes(store, linearizable=True)
    before = {name for name, mode in modes.items() if mode is RequestedMode.DRAINING}
    if bookie_id in before:
        return
    draining = before | {bookie_id}
    known = await membership.bookies()
    others = set(replacement_candidates(known, (), draining))
    # While this bookie is writable, it can also be the replacement for other draining bookies.
    concerned = draining if bookie_id in replacement_candidates(known, ()) else {bookie_id}
    stuck, first_ids, named, findings = 0, list[int](), set[str](), WalkFindings()
    async for metadata in all_ledgers(store, findings):
        if metadata.copies_released:
            continue
        for fragment in metadata.fragments:
            ensemble = set(fragment.bookies)
            # Members that are away are replaced, too. Read-only members stay.
            leaving = ensemble & draining | ensemble - known.keys()
            if ensemble & concerned and len(others - ensemble) < len(leaving):
                stuck += 1
                named |= ensemble & before
                if len(first_ids) < MAX_NAMED:
                    first_ids.append(metadata.ledger_id)
                break
    if not findings.complete:
        raise MetadataUnavailable(f"{bookie_id} is not drained: the metadata store did not list all ledgers")
    reasons: list[str] = []
    if stuck:
        which = f"{counted(stuck, 'ledger names', 'ledgers name')} {' or '.join(('it', *sorted(named)))}"
        too = f", with {', '.join(sorted(named))} being drained, too" if named else ""
        wait = ", or wait until that drain has ended," if named else ""
        reasons.append(
            f"{which} ({some_ids(first_ids, stuck)}), and too few bookies outside of their ensembles accept writes{too}"
            f" (in all: {', '.join(sorted(others)) or 'none'}). Add bookies{wait} first"
        )
    if findings.unreadable:
        which = counted(findings.unreadable, "ledger")
        reasons.append(
            f"the metadata of {which} ({some_ids(findings.unreadable_ids, findings.unreadable)}) cannot be decoded, "
            "so it would not be known when the bookie is empty. 'tallybook fsck' says what to do about them"
        )
    if reasons:
        raise CallerError(
            f"{bookie_id} cannot be drained: {'; '.join(reasons)}, or drain it anyway with {force_option}"
        )


async def switch_mode(
    store: MetadataStore,
    membership: Membership,
    clock: Clock,
    rng: Rng,
    bookie_id: str,
    mode: RequestedMode,
    *,
    on: bool,
) -> RequestedMode:
    """Order a mode of a bookie, or with ``on`` false end it; returns the mode that is then in force.

    Raises:
        NoSuchBookie: no bookie with this id is registered or has a cookie.
        CallerError: another mode is ordered, which has to be ended first.
        MetadataUnavailable, MetadataConflict: nothing was changed.
        MetadataOutcomeUnknown: the mode may have been changed.
        DamagedFile: the record of the bookie's mode cannot be decoded.
    """
    now = await requested_mode(store, bookie_id)
    known = await membership.bookies()
    if now is RequestedMode.NORMAL and bookie_id not in known and await store.read_cookie(bookie_id) is None:
        raise NoSuchBookie(f"there is no bookie {bookie_id}; registered bookies: {', '.join(known) or 'none'}")
    if now not in {RequestedMode.NORMAL, mode}:
        what = {RequestedMode.DRAINING: "being drained", RequestedMode.READ_ONLY: "read-only by order"}[now]
        how = {RequestedMode.DRAINING: "drain --cancel", RequestedMode.READ_ONLY: "readonly --off"}[now]
        raise CallerError(f"{bookie_id} is {what}: end that first with 'bookie {how} {bookie_id}'")
    wanted = mode if on else RequestedMode.NORMAL
    if wanted is not now:
        await request_mode(store, clock, rng, bookie_id, wanted)
    return wanted
