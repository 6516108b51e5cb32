"""How far a bookie is from being empty: which ledgers still name it, as all metadata say.

Whether it may be switched off rests on a complete look over all ledgers that began when nobody could choose it any
more. Ledgers whose copies the bookies may drop do not count: nobody relies on what it has of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tallybook.client.placement import replacement_candidates
from tallybook.core.counted import counted
from tallybook.core.errors import InvalidArgument, MetadataUnavailable, NoSuchBookie
from tallybook.metadata.bookie_modes import WantedMode, want_mode, wanted_mode, wanted_modes
from tallybook.metadata.store import BookieMode, Membership, MetadataStore
from tallybook.runtime.clock import Clock
from tallybook.runtime.rng import Rng

from .walk import MAX_NAMED, Findings, all_ledgers


@dataclass(frozen=True, slots=True)
class Naming:
    """Ledgers that name a bookie and rely on it."""

    bookie_id: str
    ledgers: int
    growing: int
    """Of those, the open ones that name it where they grow: they leave it when they are closed, or replace it."""
    complete: bool
    """Whether no other ledger can name it."""
    chosen: bool
    """Whether clients may still choose it for new ledgers."""
    first_ids: tuple[int, ...] = ()
    """The ids of the first ``MAX_NAMED`` of these ledgers."""

    @property
    def may_go(self) -> bool:
        """Whether it may be switched off for good."""
        return self.complete and not self.chosen and not self.ledgers


def some_ids(first_ids: Sequence[int | str], count: int) -> str:
    """The ids of ledgers, in words: all of a few, else the first of them and how many more there are."""
    named = ", ".join(map(str, first_ids))
    more = count - len(first_ids)
    return f"{named} and {more:,} more" if more > 0 else named


async def who_names(store: MetadataStore, membership: Membership, bookie_id: str) -> Naming:
    """Look over all ledgers.

    Raises:
        MetadataUnavailable: the store does not answer.
    """
    # Before the look: whoever chooses among the bookies from now on finds it read-only.
    info = (await membership.bookies()).get(bookie_id)
    chosen = info is not None and info.mode is BookieMode.WRITABLE
    findings = Findings()
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
    return Naming(bookie_id, ledgers, growing, complete, chosen, tuple(first_ids))


async def check_can_end(store: MetadataStore, membership: Membership, bookie_id: str) -> None:
    """Check that the other bookies can take what a bookie has, before it is drained.

    Raises:
        InvalidArgument: the drain, or one that is under way, would not end: too few bookies that take writes are left
            for a ledger, or its metadata cannot be understood.
        MetadataUnavailable: the store does not answer, or not with all ledgers.
    """
    modes = await wanted_modes(store, linearizable=True)
    before = {name for name, mode in modes.items() if mode is WantedMode.DRAINING}
    if bookie_id in before:
        return
    draining = before | {bookie_id}
    known = await membership.bookies()
    others = set(replacement_candidates(known, (), draining))
    # Ledgers of other bookies that are being emptied have this one to go to, until it takes no more writes.
    concerned = draining if bookie_id in replacement_candidates(known, ()) else {bookie_id}
    stuck, first_ids, named, findings = 0, list[int](), set[str](), Findings()
    async for metadata in all_ledgers(store, findings):
        if metadata.copies_released:
            continue
        for fragment in metadata.fragments:
            ensemble = set(fragment.bookies)
            # Members that are away are replaced, too; those that take no writes stay where they are.
            leaving = ensemble & draining | ensemble - known.keys()
            if ensemble & concerned and len(others - ensemble) < len(leaving):
                stuck += 1
                named |= ensemble & before
                if len(first_ids) < MAX_NAMED:
                    first_ids.append(metadata.ledger_id)
                break
    if not findings.complete:
        raise MetadataUnavailable(f"{bookie_id} is not drained: the metadata store did not tell of all ledgers")
    reasons: list[str] = []
    if stuck:
        which = f"{counted(stuck, 'ledger names', 'ledgers name')} {' or '.join(('it', *sorted(named)))}"
        too = f", with {', '.join(sorted(named))} being emptied, too" if named else ""
        reasons.append(
            f"{which} ({some_ids(first_ids, stuck)}), and too few bookies outside of their ensembles take writes{too} "
            f"(in all: {', '.join(sorted(others)) or 'none'}). Add bookies{', or let that end,' if named else ''} first"
        )
    if findings.unreadable:
        which = counted(findings.unreadable, "ledger")
        reasons.append(
            f"the metadata of {which} ({some_ids(findings.unreadable_ids, findings.unreadable)}) cannot be understood, "
            "so that it would not be known when it is empty. 'tallybook fsck' tells what to do about them"
        )
    if reasons:
        raise InvalidArgument(
            f"{bookie_id} cannot be emptied: {'; '.join(reasons)}, or drain it all the same with --force "
            '(over HTTP: "force": true)'
        )


async def switch_mode(
    store: MetadataStore, membership: Membership, clock: Clock, rng: Rng, bookie_id: str, mode: WantedMode, *, on: bool
) -> WantedMode:
    """Want a mode of a bookie, or (``on`` false) no longer; what is wanted of it from then on.

    Raises:
        NoSuchBookie: nobody has heard of it.
        InvalidArgument: something else is wanted of it, which is to be ended first.
        MetadataUnavailable, MetadataConflict: nothing was changed.
        MetadataOutcomeUnknown: it may have been.
        DamagedFile: what is wanted of it cannot be read.
    """
    now = await wanted_mode(store, bookie_id)
    known = await membership.bookies()
    if now is WantedMode.NORMAL and bookie_id not in known and await store.read_cookie(bookie_id) is None:
        raise NoSuchBookie(f"no such bookie as {bookie_id}; living are {', '.join(known) or 'none'}")
    if now not in {WantedMode.NORMAL, mode}:
        what = {WantedMode.DRAINING: "being drained", WantedMode.READ_ONLY: "read-only by order"}[now]
        how = {WantedMode.DRAINING: "drain --cancel", WantedMode.READ_ONLY: "readonly --off"}[now]
        raise InvalidArgument(f"{bookie_id} is {what}: end that first with 'bookie {how} {bookie_id}'")
    wanted = mode if on else WantedMode.NORMAL
    if wanted is not now:
        await want_mode(store, clock, rng, bookie_id, wanted)
    return wanted
