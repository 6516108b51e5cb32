"""What one writer does for many who use it at once, as the clients of a gateway do."""

from __future__ import annotations

import pytest

from tallybook.client.client import Client
from tallybook.core.errors import OutOfOrder
from tallybook.sim.stage.cluster import MemoryCluster
from tallybook.sim.stage.scenario import scenario
from tallybook.stream import Outgoing, StreamStore


@scenario()
async def test_what_is_sent_together_is_in_order_though_it_pushes_an_id_out_of_the_window(
    cluster: MemoryCluster, client: Client
) -> None:
    async with StreamStore(client) as streams:
        await streams.create("s", dedup_records=2)
        async with await streams.writer("s") as writer:
            a, b, c = (Outgoing(each, dedup_id=each, txid=each[0]) for each in (b"a", b"b", b"c"))
            sent = await writer.send([a, b])
            with pytest.raises(OutOfOrder):
                await writer.send([c, a])
            again = await writer.send([a, c])
            assert await sent[0] == await again[0]
        found = [record.payload async for record in streams.reader("s", follow=False)]
        assert found == [b"a", b"b", b"c"]
    assert client.budget.taken_bytes == 0
