"""Self-describing payloads, so that a history need not store their bytes.

A payload repeats ``ledger/number/size`` up to its size. A reader can check every byte of it, and store three numbers
instead.
"""

from __future__ import annotations

import re
from typing import Final

MIN_BYTES: Final = 32
"""Minimum size, in which the repeated text fits."""

_HEAD: Final = re.compile(rb"(\d{1,19})/(\d{1,9})/(\d{1,8}) ")


def payload_of(ledger_id: int, number: int, size: int) -> bytes:
    """The payload of the ``number``-th append to a ledger, ``size`` bytes long and at least ``MIN_BYTES``."""
    head = b"%d/%d/%d " % (ledger_id, number, size)
    return (head * (size // len(head) + 1))[:size]


def identify(ledger_id: int, payload: bytes) -> tuple[int, int] | None:
    """Number and size of a payload of this ledger; ``None``: it is not exactly such a payload."""
    match = _HEAD.match(payload)
    if match is None or int(match[1]) != ledger_id:
        return None
    number, size = int(match[2]), int(match[3])
    return (number, size) if payload == payload_of(ledger_id, number, size) else None


class Payloads:
    """Interns payloads: each is in memory once."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int, int], bytes] = {}

    def of(self, ledger_id: int, number: int, size: int) -> bytes:
        """As ``payload_of``."""
        key = (ledger_id, number, size)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = payload_of(ledger_id, number, size)
        return found

    def same(self, ledger_id: int, payload: bytes) -> bytes:
        """``payload``, or an equal one already interned."""
        identified = identify(ledger_id, payload)
        return payload if identified is None else self.of(ledger_id, *identified)
