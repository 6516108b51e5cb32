"""Payloads that say which they are, so that a log need not hold their bytes.

A payload repeats ``ledger/number/size`` until it is long enough. Whoever reads one can tell
whether every byte of it is as it was written, and note three numbers in its place.
"""

from __future__ import annotations

import re
from typing import Final

LEAST_BYTES: Final = 32
"""The words that are repeated fit into it."""

_HEAD: Final = re.compile(rb"(\d{1,19})/(\d{1,9})/(\d{1,8}) ")


def payload_of(ledger_id: int, number: int, size: int) -> bytes:
    """The payload of the ``number``-th append to a ledger, ``size`` bytes long and at least ``LEAST_BYTES``."""
    head = b"%d/%d/%d " % (ledger_id, number, size)
    return (head * (size // len(head) + 1))[:size]


def identify(ledger_id: int, payload: bytes) -> tuple[int, int] | None:
    """Number and size of a payload of this ledger; ``None`` where it is not exactly one that was made here."""
    match = _HEAD.match(payload)
    if match is None or int(match[1]) != ledger_id:
        return None
    number, size = int(match[2]), int(match[3])
    return (number, size) if payload == payload_of(ledger_id, number, size) else None


class Payloads:
    """Each payload once in memory, however often it was appended and read."""

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
        """``payload``, or an equal one that is known already."""
        told = identify(ledger_id, payload)
        return payload if told is None else self.of(ledger_id, *told)
