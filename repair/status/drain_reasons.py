"""Explains to operators why ledgers still name a bookie that is being drained.

Each ledger costs a check of its copies, so only the ledgers that are listed by id are explained.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from enum import Enum
from typing import Final

from tallybook.client.ports import ClientWorld
from tallybook.client.refusals import is_refusal
from tallybook.core.errors import (
    DamagedFile,
    MetadataUnavailable,
    NewerFormat,
    NoSuchLedger,
    OtherLedger,
    PeerError,
    StorageError,
    TallybookError,
    is_defect,
)
from tallybook.metadata.ledger.model import Fragment, LedgerMetadata
from tallybook.metadata.store import BookieMode
from tallybook.runtime.tasks import run_together

from ..open_ledgers import ACCEPT_LOSS, can_be_recovered
from ..pause import paused_since
from ..service import STALE_SECONDS, age_of, repair_status
from .check import CopyCheck, LedgerCheck, damaged_of, no_good_copy_left

_AS_ARCHIVED: Final = (
    ", but the archive has one: it no longer counts once the offloader lets bookies drop their copies, "
    "offload.deletion_lag_s after archiving"
)
_NOT_KNOWN: Final = "the reason is not known"
_REFUSED: Final = "the reason is not known, since this client cannot use a bookie"
_PART: Final = 0.4
"""Part of the deadline for the check of a ledger's copies, and for each round of questions to bookies."""


async def why_still_referenced(
    world: ClientWorld, bookie_id: str, ledger_ids: Sequence[int], *, within_s: float
) -> dict[int, str]:
    """For each ledger, why it still names the bookie. A ledger is left out if that is not known within the deadline."""
    found: dict[int, str] = {}

    async def explain(ledger_id: int, writable: Collection[str], stands_still: str) -> None:
        try:
            why = await _reason(world, bookie_id, ledger_id, writable, stands_still, within_s * _PART)
        except (NoSuchLedger, MetadataUnavailable):
            return
        except TallybookError as error:
            if is_defect(error):
                raise
            found[ledger_id] = f"{_REFUSED if is_refusal(error) else _NOT_KNOWN}: {error.message}"
        else:
            if why is not None:
                found[ledger_id] = why

    with suppress(TimeoutError, MetadataUnavailable):
        async with asyncio.timeout(within_s):
            known = await world.membership.bookies()
            writable = {name for name, info in known.items() if info.mode is BookieMode.WRITABLE and name != bookie_id}
            stands_still = await _why_nothing_moves(world)
            await run_together(*(explain(ledger_id, writable, stands_still) for ledger_id in ledger_ids))
    return {ledger_id: found[ledger_id] for ledger_id in ledger_ids if ledger_id in found}


async def _reason(
    world: ClientWorld, bookie_id: str, ledger_id: int, writable: Collection[str], stands_still: str, timeout_s: float
) -> str | None:
    """Why one ledger names the bookie; ``None``: it does not.

    Args:
        stands_still: why the repair does not work; empty: it does.
    """
    try:
        metadata = (await world.store.read_ledger(ledger_id)).value
        fragments = [each for each in metadata.fragments if bookie_id in each.bookies]
        if not fragments:
            return None
        why = await _why(world, metadata, bookie_id, fragments, writable, timeout_s) or stands_still
        return why or await _too_small(world, fragments, writable, timeout_s) or "it waits to be copied"
    except (DamagedFile, NewerFormat) as error:
        return f"its metadata cannot be read: {error.message}"


async def _why(
    world: ClientWorld,
    metadata: LedgerMetadata,
    bookie_id: str,
    fragments: list[Fragment],
    writable: Collection[str],
    timeout_s: float,
) -> str:
    check = LedgerCheck(metadata.ledger_id)
    with suppress(TimeoutError):
        # Without an answer from a bookie that hangs, the check cannot say that no good copy is left.
        async with asyncio.timeout(timeout_s):
            check = await CopyCheck(world.store, world.connections).check_ledger(metadata)
    for lack in check.lacks:
        at = metadata.fragment_of(lack.first)
        if at in fragments and no_good_copy_left(check, metadata, lack.first):
            which = f"no bookie has a good copy of entries {lack.first} to {lack.last}"
            grows = not metadata.closed and at == metadata.last_fragment
            remedy = ACCEPT_LOSS if grows else "restore one, or delete the ledger"
            return which + (_AS_ARCHIVED if metadata.archived else f": {remedy}")
    crowded = next((each for each in fragments if not set(writable) - set(each.bookies)), None)
    if crowded is not None:
        others = ", ".join(name for name in crowded.bookies if name != bookie_id)
        return f"no bookie besides {others or bookie_id} accepts writes, so none can replace it: add one"
    if metadata.closed or metadata.last_fragment not in fragments:
        return ""
    return _why_open(metadata, await _member_states(world, metadata, timeout_s))


async def _too_small(
    world: ClientWorld, fragments: Sequence[Fragment], writable: Collection[str], timeout_s: float
) -> str:
    """Says if all replacement candidates have a lower batch limit than the present members; else empty."""
    sizes: dict[str, int] = {}

    async def ask(name: str) -> None:
        try:
            sizes[name] = (await world.connections.get(name)).max_batch_bytes
        except TallybookError as error:
            if is_defect(error):
                raise

    names = {*writable, *(name for each in fragments for name in each.bookies)}
    with suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await run_together(*map(ask, names))
    for fragment in fragments:
        largest = min((sizes[name] for name in fragment.bookies if name in sizes), default=0)
        others = sorted(set(writable) - set(fragment.bookies))
        if others and all(sizes.get(name, largest) < largest for name in others):
            up_to = ", ".join(f"{name} up to {sizes[name]:,} bytes" for name in others)
            return (
                f"it may have batches of up to {largest:,} bytes, and bookies that could replace it take only "
                f"smaller ones ({up_to}): raise their journal.max_commit_bytes"
            )
    return ""


def _why_open(metadata: LedgerMetadata, states: Mapping[str, _MemberState]) -> str:
    """Why the last fragment of an open ledger names the bookie."""
    has_writer = _MemberState.WRITER in states.values()
    lost = {name for name, each in states.items() if each is _MemberState.LOST}
    silent = {name for name, each in states.items() if each is _MemberState.NOTHING}
    none_good = {_MemberState.LOST, _MemberState.DAMAGED}.issuperset(states.values())
    if not has_writer and (none_good or not can_be_recovered(metadata, lost)):
        return f"it is open, and too few bookies still have their entries of it: {ACCEPT_LOSS}"
    if not has_writer and not can_be_recovered(metadata, lost | silent):
        return f"it is open, and too few of its bookies answer: bring back {', '.join(sorted(silent))}"
    if metadata.key_verifier:
        return "it is open and has a password: close it, or use 'ledger recover LEDGER --password-file FILE'"
    state = "it is open and its writer is connected" if has_writer else "it is open"
    if not can_be_recovered(metadata, lost | silent):
        return f"{state}, and too few of its bookies know which entries they had for the repair to end it: close it"
    return f"{state}: the repair ends it after its open_grace_s"


class _MemberState(Enum):
    """The answer of a member of the last fragment."""

    WRITER = "a writer is connected"
    GOOD = "it has its data"
    DAMAGED = "it knows a damaged copy"
    LOST = "it lost its data, or has another ledger"
    NOTHING = "it does not answer in time, or does not know the ledger"


async def _member_states(world: ClientWorld, metadata: LedgerMetadata, timeout_s: float) -> dict[str, _MemberState]:
    """The answer of each member of the last fragment."""
    names = metadata.last_fragment.bookies
    states = await asyncio.gather(*(_member_state(world, metadata, name, timeout_s) for name in names))
    return dict(zip(names, states, strict=True))


async def _member_state(world: ClientWorld, metadata: LedgerMetadata, name: str, timeout_s: float) -> _MemberState:
    first = metadata.last_fragment.first_entry_id
    try:
        async with asyncio.timeout(timeout_s):
            connection = await world.connections.get(name)
            held = await connection.held(metadata.ledger_id, first, first, identity=metadata.identity)
            damaged = await damaged_of(connection, metadata.ledger_id)
    except OtherLedger:
        return _MemberState.LOST
    except (PeerError, StorageError, NoSuchLedger, TimeoutError):
        return _MemberState.NOTHING
    if held.writer:
        return _MemberState.WRITER
    if held.limbo:
        return _MemberState.LOST
    return _MemberState.DAMAGED if any(each.last >= first for each in damaged) else _MemberState.GOOD


async def _why_nothing_moves(world: ClientWorld) -> str:
    """Why the repair does not work; empty: it does."""
    try:
        if await paused_since(world.store) is not None:
            return "the repair is paused: 'cluster audit --resume'"
        age_s = age_of(await repair_status(world.store), world.clock)
    except (DamagedFile, NewerFormat) as error:
        return f"it is not known whether the repair is running: {error.message}"
    if age_s is None or age_s >= STALE_SECONDS:
        return "no auditor is running: is 'tallybook repair run' running?"
    return ""
