"""What many clients got of one cluster: how much in all, and how evenly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tallybook.core.errors import InvalidArgument

SLOT_NS = 100_000_000
"""Confirmations are counted in slots of so many nanoseconds of ``time.monotonic_ns``, which is the machine's."""


def jain_index(shares: Sequence[float]) -> float:
    """How even shares are: 1 where all have the same, 1/n where one of n has everything.

    Jain, Chiu, Hawe: *A quantitative measure of fairness and discrimination for resource allocation in shared computer
    systems* (1984).

    Raises:
        InvalidArgument: there are no shares, or nobody got anything.
    """
    squares = sum(share * share for share in shares)
    if not squares:
        raise InvalidArgument("nobody got anything")
    total = sum(shares)
    return total * total / (len(shares) * squares)


def within(slots: Mapping[int, int], began_ns: int, ended_ns: int) -> int:
    """What was counted in the slots that lie wholly in a window."""
    first, end = -(-began_ns // SLOT_NS), ended_ns // SLOT_NS
    return sum(count for slot, count in slots.items() if first <= slot < end)


def window_seconds(began_ns: int, ended_ns: int) -> float:
    """How long the slots are that lie wholly in a window.

    Raises:
        InvalidArgument: there is none.
    """
    slots = ended_ns // SLOT_NS + began_ns // -SLOT_NS
    if slots <= 0:
        raise InvalidArgument("the window is shorter than a slot")
    return slots * SLOT_NS / 1e9
