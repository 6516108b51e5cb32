"""The load of a cluster of two revisions: it detects missing data, and reports nothing missing that exists."""

import asyncio

from tallybook.client.client import Client
from tallybook.proto import stream_pb2 as pb
from tallybook.sim.upgrade import mixed_streams
from tallybook.sim.upgrade.mixed_load import BATCH_ENTRIES, LedgerLoad, read

from ..simulated import scenario
from ..support.memory_cluster import MemoryCluster


async def written(client: Client) -> dict:
    load = LedgerLoad(client, "tag")
    running = asyncio.ensure_future(load.run())
    await asyncio.sleep(1)
    load.stopping.set()
    await running
    return {"tag": "tag", "confirmed": {str(ledger_id): count for ledger_id, count in load.confirmed.items()}}


@scenario(bookies=3)
async def test_confirmed_entries_of_a_load_are_read_and_missing_ones_are_named(
    cluster: MemoryCluster, client: Client
) -> None:
    told = await written(client)
    count = sum(told["confirmed"].values())
    assert count > BATCH_ENTRIES
    assert await read(client, [told]) == {"entries": count, "lost": []}
    ledger_id, confirmed = next(iter(told["confirmed"].items()))
    more = {**told, "confirmed": {ledger_id: confirmed + 1}}
    assert (await read(client, [more]))["lost"] == [[int(ledger_id), confirmed + 1, confirmed]]
    fewer = {**told, "confirmed": {ledger_id: confirmed - BATCH_ENTRIES - 1}}
    assert (await read(client, [fewer]))["lost"] == [[int(ledger_id), confirmed - BATCH_ENTRIES - 1, confirmed]]
    other = {**told, "tag": "another"}
    assert len((await read(client, [other]))["lost"]) == len(told["confirmed"])


class RecordedStreams:
    """A fake stream service of a gateway."""

    def __init__(self, **records: list[bytes]) -> None:
        self._records = records

    async def Read(self, request):  # noqa: N802 - as the service has it
        for each in self._records[request.name]:
            yield pb.ReadStreamReply(records=pb.StreamRecords(records=[pb.StreamRecord(payload=each)]))


async def test_records_that_are_missing_or_twice_or_in_another_order_are_named() -> None:
    ten = [mixed_streams.payload("s", number) for number in range(10)]
    told = {"tag": "s", "confirmed": {"s": 10}}
    assert await mixed_streams.read(RecordedStreams(s=ten), [told]) == {"entries": 10, "lost": []}
    more = [mixed_streams.payload("s", number) for number in range(10 + mixed_streams.BATCH_ENTRIES)]
    assert (await mixed_streams.read(RecordedStreams(s=more), [told]))["lost"] == []
    for wrong in (
        ten[:-1],
        [*ten, ten[-1]],
        [ten[1], ten[0], *ten[2:]],
        [*more, mixed_streams.payload("s", len(more))],
    ):
        assert (await mixed_streams.read(RecordedStreams(s=wrong), [told]))["lost"] == [["s", 10, len(wrong)]]
