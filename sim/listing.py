"""Listings of ledgers while pages are cut off: what is there before and after one has to be on it."""

from __future__ import annotations

from tallybook.client.client import Client

from .god import God


async def listed(client: Client, god: God) -> set[int]:
    """List all ledgers.

    Raises:
        TallybookError: the listing did not come to its end, and says nothing.
    """
    before = set(god.ledgers)
    found = {ledger_id async for ledger_id in client.list_ledgers()}
    missing = sorted(before & set(god.ledgers) - god.missed - found)
    god.expect(not missing, "I1", f"a listing that came to its end lacks ledgers {missing}")
    return found
