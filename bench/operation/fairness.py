"""Throughput and fairness of many clients on one cluster. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tallybook.core.errors import InvalidArgument

SLOT_NS = 100_000_000
"""Confirmations are counted per slot of ``time.monotonic_ns``, which all processes of a machine share."""


def jain_index(shares: Sequence[float]) -> float:
    """Jain's fairness index: 1 if all shares are equal, 1/n if one of n has everything.

    Jain, Chiu, Hawe: *A quantitative measure of fairness and discrimination for resource allocation in shared computer
    systems* (1984).

    Raises:
        InvalidArgument: there are no shares, or all are 0.
    """
    squares = sum(share * share for share in shares)
    if not squares:
        raise InvalidArgument("there are no shares above 0")
    total = sum(shares)
    return total * total / (len(shares) * squares)


def within(slots: Mapping[int, int], began_ns: int, ended_ns: int) -> int:
    """The count in slots completely within a window."""
    first, end = -(-began_ns // SLOT_NS), ended_ns // SLOT_NS
    return sum(count for slot, count in slots.items() if first <= slot < end)


def window_seconds(began_ns: int, ended_ns: int) -> float:
    """Total length of the slots completely within a window.

    Raises:
        InvalidArgument: there is no such slot.
    """
    slots = ended_ns // SLOT_NS + began_ns // -SLOT_NS
    if slots <= 0:
        raise InvalidArgument("the window is shorter than a slot")
    return slots * SLOT_NS / 1e9
