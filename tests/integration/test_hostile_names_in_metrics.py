"""Names chosen by users get into metrics only as labels of lags: a real scrape after hostile and very many names."""

from __future__ import annotations

import asyncio
import re
import urllib.request

import grpc
import grpc.aio
from prometheus_client.parser import text_string_to_metric_families

from tallybook.client.client import Client
from tallybook.core.settings import GatewaySettings
from tallybook.gateway.server import serving
from tallybook.proto import ledger_pb2, ledger_pb2_grpc, stream_pb2, stream_pb2_grpc

DEADLINE_SECONDS = 60
MARK = "hostile"
NAMES = [
    f'{MARK}"}} 1',
    f"{MARK}\\",
    f'{MARK}",x="y',
    f"{MARK}{{le='+Inf'}}",
    f"{MARK}\ntallybook_up 0",
    f"{MARK} # EOF",
    f"{MARK}\u2028\U0001f4a3",
    *(f"{MARK}-{number}" for number in range(150)),
]
"""Some of them are invalid names of streams; they are requested as well."""
SERIES = re.compile(r"^([a-z_]+(?:\{[^}]*\})?) ", re.MULTILINE)


async def scraped(address: str) -> str:
    def get() -> str:
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
            return answer.read().decode()

    return await asyncio.to_thread(get)


def without_lags(text: str) -> str:
    """A scrape without the lags of subscriptions, whose labels are names: the cluster has those of other tests."""
    return "\n".join(line for line in text.splitlines() if "tallybook_stream_subscription_lag_" not in line)


async def ask_with(name: str, ledgers: ledger_pb2_grpc.LedgerServiceStub, streams: stream_pb2_grpc.StreamServiceStub):
    """Use a name wherever a client may choose one, well or in vain."""
    custom = {"name": name.encode(), name[:40]: b""}
    asks = [
        lambda: ledgers.Create(ledger_pb2.CreateRequest(ensemble=1, custom=custom)),
        lambda: streams.Describe(stream_pb2.DescribeStreamRequest(name=name)),
        lambda: streams.Describe(stream_pb2.DescribeStreamRequest(name="s", namespace=name)),
        lambda: streams.DeleteSubscription(stream_pb2.DeleteSubscriptionRequest(name="s", subscription=name)),
    ]
    outcomes = await asyncio.gather(*(ask() for ask in asks), return_exceptions=True)
    assert all(not isinstance(each, BaseException) or isinstance(each, grpc.aio.AioRpcError) for each in outcomes)


async def test_no_name_of_a_ledger_a_stream_or_a_client_makes_or_breaks_a_line_of_the_metrics(cluster):
    settings = GatewaySettings(metadata=cluster.metadata)
    async with (
        asyncio.timeout(DEADLINE_SECONDS),
        Client(cluster.metadata, settings.client) as client,
        serving(client, settings) as addresses,
    ):
        agent = (("grpc.primary_user_agent", f'{MARK}"}} 1'),)
        async with grpc.aio.insecure_channel(addresses.grpc, options=agent) as channel:
            stubs = ledger_pb2_grpc.LedgerServiceStub(channel), stream_pb2_grpc.StreamServiceStub(channel)
            await ask_with("plain", *stubs)
            first = await scraped(addresses.http)
            for name in NAMES:
                await ask_with(name, *stubs)
            made = [stubs[1].Create(stream_pb2.CreateStreamRequest(name=f"{MARK}/{number}")) for number in range(5)]
            await asyncio.gather(*made)
        last = await scraped(addresses.http)
    assert MARK not in last
    first, last = without_lags(first), without_lags(last)
    assert set(SERIES.findall(last)) == set(SERIES.findall(first))
    assert len(list(text_string_to_metric_families(last))) == len(list(text_string_to_metric_families(first)))
    of_a_bookie = await scraped(f"127.0.0.1:{cluster.run_file(1)['ports']['http']}")
    assert MARK not in of_a_bookie
    assert "ledger_id" not in of_a_bookie
