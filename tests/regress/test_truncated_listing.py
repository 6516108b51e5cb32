"""A listing of ledgers with an empty page in the middle: the client took it for the end."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tallybook.client.client import Client
from tallybook.core.errors import MetadataUnavailable
from tallybook.metadata.store import LedgerPage

from ..simulated import scenario
from ..support.ledger_scenario import SMALL


class CutOff:
    """A store whose pages hold so many ledgers, one after the other; once they are used up, pages are whole."""

    def __init__(self, store: Any, sizes: list[int]) -> None:
        self._store = store
        self._sizes = sizes
        self.asked = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def list_ledgers(self, after: int = -1, limit: int = 1000) -> LedgerPage:
        self.asked += 1
        page = await self._store.list_ledgers(after, limit)
        return LedgerPage(page.ledger_ids[: self._sizes.pop(0)], complete=False) if self._sizes else page


async def listed(client: Client, *sizes: int) -> tuple[list[int], int]:
    store = CutOff(client.world.store, list(sizes))
    other = Client(replace(client.world, store=store), SMALL)
    return [ledger_id async for ledger_id in other.list_ledgers()], store.asked


@scenario()
async def test_a_listing_goes_on_where_a_page_was_cut_off_and_asks_no_more_than_it_has_to(cluster, client):
    made = [(await client.create_ledger()).id for _ in range(5)]
    assert await listed(client) == (made, 1)
    assert await listed(client, 2, 1) == (made, 3)


@scenario()
async def test_a_listing_that_breaks_off_before_anything_is_an_error_and_not_an_empty_one(cluster, client):
    await client.create_ledger()
    with pytest.raises(MetadataUnavailable):
        await listed(client, 0)
