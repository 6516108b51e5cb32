"""Symmetry reduction: worlds that differ only in names of bookies or order of recoverers count as one.

If every entry goes to all bookies of the ensemble, exchanging two of them (names and positions together) changes
nothing that the protocol can see. Of all such worlds the search keeps the one with the least key: one in twelve, for
three bookies and two recoverers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import permutations, product
from typing import Any, TypeAlias

from tallybook.client.recovery.machine import RecoveryMachine
from tallybook.client.writer.machine import WriterMachine
from tallybook.client.writer.outbox import MemberOutbox
from tallybook.metadata.ledger.model import Fragment, LedgerMetadata

Order: TypeAlias = tuple[int, ...]
"""New index of each position."""


def arrangements(signatures: tuple[Any, ...]) -> Iterator[Order]:
    """Orders that sort the positions by their signatures; several if some signatures are equal."""
    ranked = sorted(range(len(signatures)), key=signatures.__getitem__)
    groups: list[list[int]] = []
    for position in ranked:
        if groups and signatures[groups[-1][0]] == signatures[position]:
            groups[-1].append(position)
        else:
            groups.append([position])
    for arranged in product(*(permutations(group) for group in groups)):
        flat = [position for group in arranged for position in group]
        order = [0] * len(flat)
        for place, position in enumerate(flat):
            order[position] = place
        yield tuple(order)


@cache
def renamed(name: str, order: Order) -> str:
    """The name of a bookie after an exchange. A replacement bookie keeps its name."""
    return f"b{order[int(name[1:])]}" if name.startswith("b") else name


@cache
def moved_fragment(fragment: Fragment, order: Order) -> Fragment:
    """The fragment after an exchange."""
    return Fragment(fragment.first_entry_id, _moved([renamed(name, order) for name in fragment.bookies], order))


def moved_metadata(metadata: LedgerMetadata, order: Order) -> LedgerMetadata:
    """The metadata after an exchange."""
    return replace(metadata, fragments=tuple(moved_fragment(each, order) for each in metadata.fragments))


def move_writer(machine: WriterMachine, order: Order) -> None:
    """Exchange bookies in a writer."""
    held: dict[str, Any] = machine.__dict__
    machine.fragment = moved_fragment(machine.fragment, order)
    for position in held["_positions"]:
        position.bookie_id = renamed(position.bookie_id, order)
        position.outbox = _in_order(position.outbox)
    held["_positions"] = list(_moved(held["_positions"], order))
    held["_departed"] = {renamed(name, order): missed for name, missed in sorted(held["_departed"].items())}
    for batch in held["_batches"].values():
        batch.acked = {order[at] for at in batch.acked}
        batch.skipped = {order[at] for at in batch.skipped}
    change = held["_change"]
    if change is not None:
        positions = tuple(sorted(order[at] for at in change.positions))
        held["_change"] = replace(change, wanted=moved_fragment(change.wanted, order), positions=positions)


def move_recovery(machine: RecoveryMachine, order: Order) -> None:
    """Exchange bookies in a recovery."""
    held: dict[str, Any] = machine.__dict__
    machine.metadata = moved_metadata(machine.metadata, order)
    held["_bookies"] = machine.metadata.last_fragment.bookies
    held["_fragments"] = [moved_fragment(each, order) for each in held["_fragments"]]
    for name in ("_fences", "_reads"):
        held[name] = _by_position(held[name], order)
    for copy in held["_window"].copies.values():
        copy.adds = _by_position(copy.adds, order)
    for name in ("_irreplaceable", "_contradicted"):
        held[name] = {order[at] for at in held[name]}
    held["_missed"] = dict(sorted((renamed(name, order), ranges) for name, ranges in held["_missed"].items()))


def _in_order(outbox: MemberOutbox) -> MemberOutbox:
    """The outbox with its batches in id order. No bookie is BUSY in the model, so nothing waits for a resend."""
    fresh = MemberOutbox()
    for first in sorted(outbox.unanswered):
        fresh.sent(first, 0.0)
    return fresh


def _moved(values: list[Any], order: Order) -> tuple[Any, ...]:
    moved = [None] * len(values)
    for position, value in enumerate(values):
        moved[order[position]] = value
    return tuple(moved)


def _by_position(held: dict[int, Any], order: Order) -> dict[int, Any]:
    return dict(sorted((order[at], value) for at, value in held.items()))
