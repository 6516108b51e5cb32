"""Numbers of things in messages: ``1 ledger``, ``2,000 ledgers``."""

from __future__ import annotations


def counted(count: int, one: str, many: str = "") -> str:
    """A number and what it counts, such as ``counted(1, "ledger names", "ledgers name")``.

    Args:
        many: for every other number than 1; by default ``one`` with an s.
    """
    return f"{count:,} {one if count == 1 else many or one + 's'}"
