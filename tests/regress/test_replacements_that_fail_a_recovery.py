"""A recovery chose the same bookies again for ever, if they accepted connections but no adds."""

from __future__ import annotations

import asyncio

from ..simulated import scenario
from ..support.ledger_scenario import SMALL, lines

QUICK = SMALL.model_copy(update={"add_timeout_ms": 500, "request_timeout_ms": 500})


@scenario(bookies=6)
async def test_a_recovery_ends_if_no_replacement_candidate_takes_a_batch(cluster, client):
    ledger = await client.create_ledger()
    await ledger.append_many(lines(20))
    ledger.abandon()
    good = ledger.metadata.last_fragment.bookies[:2]

    async def takes_nothing(method: str, _ledger_id: int) -> None:
        if method == "recovery_add":
            await asyncio.Event().wait()

    for name, bookie in cluster.bookies.items():
        if name not in good:
            bookie.gate = takes_nothing
    async with cluster.client(QUICK) as recoverer, asyncio.timeout(60):
        closed = await recoverer.recover_ledger(ledger.id)
    assert closed.last_entry_id == 19
    assert {gap.bookie_id for gap in closed.missed} == {closed.last_fragment.bookies[2]}
