"""Log lines of failures name the object, and an outage or a damaged range does not log a line per call or entry."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from tallybook.client.client import Client
from tallybook.core.errors import EntryCorrupt, MetadataUnavailable
from tallybook.proto import stream_pb2 as pb
from tallybook.runtime.calls import CallFailed

from ..simulated import scenario
from ..support.gateway_calls import FakeCall
from ..support.gateways import gateways
from ..support.ledger_scenario import eventually, lines
from ..support.memory_cluster import MemoryCluster
from .parts import one_stream


def told(caplog: pytest.LogCaptureFixture, event: str) -> list[dict[str, Any]]:
    """The fields of each line of an event."""
    return [vars(record)["tallybook_fields"] for record in caplog.records if record.getMessage() == event]


@pytest.fixture(autouse=True)
def _warnings(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)


def test_calls_that_fail_in_an_outage_are_a_line_a_second_with_all_that_they_are_about(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    @scenario()
    async def play(cluster: MemoryCluster, client: Client) -> None:
        async with gateways(cluster) as [gateway]:
            describe = gateway.service.handlers()["Describe"]

            async def away(*_: object, **__: object) -> None:
                raise MetadataUnavailable("the store does not answer")

            monkeypatch.setattr(gateway.stores.default, "info", away)
            for _ in range(25):
                call = FakeCall(pb.StreamDescription, peer="10.0.0.9:1")
                call.say(pb.DescribeStreamRequest(name="s"))
                with pytest.raises(CallFailed):
                    await describe(call)
                await cluster.world.clock.sleep(0.1)

    play()
    found = told(caplog, "call failed")
    assert len(found) == 3
    assert "untold_count" not in found[0]
    assert min(found[1]["untold_count"], found[2]["untold_count"]) >= 8
    about = {"method": "StreamService/Describe", "peer": "10.0.0.9:1", "principal": "anybody", "stream": "s"}
    assert about.items() <= found[0].items()
    assert found[0]["error_type"] == "MetadataUnavailable"


def test_a_copy_that_is_bad_from_end_to_end_is_no_line_for_each_entry(caplog: pytest.LogCaptureFixture) -> None:
    @scenario()
    async def play(cluster: MemoryCluster, client: Client) -> None:
        async with await client.create_ledger() as ledger:
            for line in lines(40):
                await ledger.append(line)
        for entry_id in range(40):
            for name in ledger.metadata.last_fragment.bookies:
                cluster.bookies[name].faults.rot(ledger.id, entry_id)
        reader = await client.open_ledger(ledger.id)
        for entry_id in range(40):
            with pytest.raises(EntryCorrupt):
                await reader.read_entry(entry_id)
            await cluster.world.clock.sleep(0.05)

    play()
    found = told(caplog, "bad copy")
    assert {each["ledger_id"] for each in found} == {found[0]["ledger_id"]}
    # In two seconds and a bit, of three bookies.
    assert len(found) in range(3, 10)
    assert sum(each.get("untold_count", 0) for each in found) > 50


@scenario(bookies=4)
async def test_a_segment_that_has_failed_is_named_with_its_ledger(
    cluster: MemoryCluster, client: Client, *, caplog: pytest.LogCaptureFixture
) -> None:
    async with one_stream(client) as streams:
        async with await streams.writer("s") as writer:
            await writer.append(b"one")
            ledger_ids = [ledger_id async for ledger_id in client.list_ledgers()]
            async with cluster.client() as other:
                for ledger_id in ledger_ids:
                    await other.open_ledger(ledger_id)
            await writer.append(b"two")
            await eventually(lambda: bool(told(caplog, "segment failed")), cluster)
        (line,) = told(caplog, "segment failed")
        assert line["stream"] == "s"
        assert line["ledger_id"] in ledger_ids
        assert line["segment"] >= 0
