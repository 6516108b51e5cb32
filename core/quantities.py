"""Counts with their nouns for messages: ``1 ledger``, ``2,000 ledgers``."""

from __future__ import annotations


def counted(count: int, one: str, many: str = "") -> str:
    """Format a count with its noun, such as ``counted(1, "ledger names", "ledgers name")``.

    Args:
        many: the form for counts other than 1; default: ``one`` with an s.
    """
    return f"{count:,} {one if count == 1 else many or one + 's'}"
