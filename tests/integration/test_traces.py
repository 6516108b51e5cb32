"""Traces of real processes: an OTLP endpoint receives one add and one read, as one tree of spans each."""

import asyncio
import http.server
import re
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import grpc.aio
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Status

from tallybook.client.client import Client
from tallybook.core.settings import ClientSettings, GatewaySettings
from tallybook.gateway.server import serving
from tallybook.proto import ledger_pb2 as pb
from tallybook.proto import ledger_pb2_grpc
from tallybook.runtime.tracing.catalog import MAX_ATTRIBUTE_CHARACTERS, PREFIX

from ..spans import SPAN_NAMES

PATIENCE_SECONDS = 20
NOW = ("--set", "max_set_wait_s=0", "--set", "deletion_lag_s=0")
CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331"
SKEW_NS = 1_000_000
SECRET = b"nobody is to see this"


class Heard(NamedTuple):
    """A span as the endpoint got it."""

    service: str
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    begin: int
    end: int
    attributes: dict[str, Any]
    events: tuple[str, ...]
    failed: bool


class Endpoint:
    """A server for OTLP over HTTP."""

    def __init__(self) -> None:
        self.spans: list[Heard] = []
        self.bodies: list[bytes] = []
        endpoint = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                assert self.path == "/v1/traces"
                endpoint.take(self.rfile.read(int(self.headers["Content-Length"])))
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Nothing."""

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.traces = f"http://127.0.0.1:{self.server.server_port},share=1"

    def take(self, body: bytes) -> None:
        self.bodies.append(body)
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            said = {each.key: value_of(each.value) for each in resource.resource.attributes}
            for scope in resource.scope_spans:
                self.spans += [heard(said["service.name"], span) for span in scope.spans]

    async def trace(self, where: Callable[[Heard], bool], *wanted: str) -> list[Heard]:
        """All spans of the trace with such a span, once it has the given number of each name, and every parent."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline:
            spans = list(self.spans)
            for root in filter(where, spans):
                found = [span for span in spans if span.trace_id == root.trace_id]
                ids = {span.span_id for span in found} | {"", CALLER[-16:]}
                complete = all(span.parent_id in ids for span in found)
                if complete and Counter(span.name for span in found) >= Counter(wanted):
                    return found
            await asyncio.sleep(0.05)
        pytest.fail(f"no trace with {wanted}; heard: {sorted((s.service, s.name) for s in self.spans)}")


def heard(service: str, span: Any) -> Heard:
    return Heard(
        service, span.name, span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex(),
        span.start_time_unix_nano, span.end_time_unix_nano,
        {each.key.removeprefix(PREFIX): value_of(each.value) for each in span.attributes},
        tuple(event.name for event in span.events), span.status.code == Status.STATUS_CODE_ERROR,
    )  # fmt: skip


def value_of(value: Any) -> Any:
    return getattr(value, value.WhichOneof("value"))


@pytest.fixture(scope="module")
def endpoint() -> Iterator[Endpoint]:
    made = Endpoint()
    thread = threading.Thread(target=made.server.serve_forever)
    thread.start()
    yield made
    made.server.shutdown()
    made.server.server_close()
    thread.join()


@pytest.fixture(scope="module")
def traced(cli, endpoint, tmp_path_factory) -> Iterator[Any]:
    """Three bookies that trace sampled requests."""
    data = tmp_path_factory.mktemp("traced") / "data"
    with cli.up(data, "--set", f"traces={endpoint.traces}") as cluster:
        yield cluster


def client(cluster: Any, traces: str) -> Client:
    return Client(cluster.metadata, ClientSettings(traces=traces))


def check_catalog(spans: list[Heard]) -> None:
    """All names and values of spans are in the catalog, and are short."""
    for span in spans:
        info = SPAN_NAMES[span.name]
        assert info.where == span.service.removeprefix("tallybook-") or span.service == "tallybook-gateway"
        assert set(span.attributes) - {"error.type"} <= set(info.attributes), span
        assert set(span.events) <= set(info.events), span
        assert all(len(str(value)) <= MAX_ATTRIBUTE_CHARACTERS for value in span.attributes.values())


def children(spans: list[Heard], above: Heard, name: str) -> list[Heard]:
    return [span for span in spans if span.parent_id == above.span_id and span.name == name]


def within(inner: Heard, outer: Heard) -> bool:
    """Whether one is within the other, up to the error of a clock that is being adjusted."""
    return outer.begin - SKEW_NS <= inner.begin <= inner.end <= outer.end + SKEW_NS


async def test_one_add_is_one_tree_from_the_client_to_the_journals_of_three_bookies(cli, traced, endpoint):
    async with client(traced, endpoint.traces) as one:
        # All three acks are needed, so the batch is not confirmed before each bookie has received it.
        writer = await one.create_ledger(password=SECRET, ack_quorum=3)
        await asyncio.gather(*[writer.append(SECRET) for _ in range(3)])
        await writer.close()
        ledger_id = writer.id
    spans = await endpoint.trace(
        lambda span: span.name == "tallybook.add" and span.attributes["ledger_id"] == ledger_id,
        *3 * ("bookie.journal.write",),
    )
    check_catalog(spans)
    [add] = [span for span in spans if not span.parent_id]
    assert add.attributes == {
        "ledger_id": ledger_id, "first_entry_id": 0, "last_entry_id": 2, "entries": 3, "payload_bytes": 3 * len(SECRET),
    }  # fmt: skip
    assert add.events == ("sealed", "confirmed")
    requests = children(spans, add, "tallybook.request")
    assert len({span.attributes["peer"] for span in requests}) == len(requests) == 3
    for request in requests:
        assert request.attributes["request"] == "Add"
        assert request.attributes["code"] == 0
        assert request.attributes["entries"] == 3
        [serve] = children(spans, request, "bookie.serve")
        [journal] = children(spans, serve, "bookie.journal")
        [write] = children(spans, journal, "bookie.journal.write")
        assert serve.service == "tallybook-bookie"
        assert "in the write cache" in serve.events
        assert within(serve, request)
        assert within(journal, serve)
        assert within(write, journal)
        assert write.attributes["commit_records"] >= 1
        assert within(request, add)
    assert len(spans) == 1 + 3 * 4
    address = f"127.0.0.1:{traced.run_file(1)['ports']['http']}"
    # The bookie counts a span as sent once the collector has acknowledged it.
    await asyncio.to_thread(cli.wait_until, lambda: counted(address)["sent"] >= 3, "spans that were sent")
    assert {**counted(address), "sent": 0} == {"sent": 0, "dropped": 0, "failed": 0}


def counted(address: str) -> dict[str, float]:
    """The counters of a bookie for its spans."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
        found = re.findall(r'tallybook_trace_spans_total{outcome="(\w+)"} (\S+)', answer.read().decode())
    return {outcome: float(count) for outcome, count in found}


async def test_one_read_is_one_tree_and_says_where_the_bytes_were(traced, endpoint):
    async with client(traced, "") as silent, await silent.create_ledger() as writer:
        await writer.append(SECRET)
    before = len(endpoint.spans)
    async with client(traced, endpoint.traces) as one:
        reader = await one.open_ledger(writer.id)
        assert (await reader.read_entry(0)).payload == SECRET
    spans = await endpoint.trace(
        lambda span: span.name == "tallybook.read" and span.attributes["ledger_id"] == writer.id, "bookie.serve"
    )
    check_catalog(spans)
    [read] = [span for span in spans if not span.parent_id]
    [request] = children(spans, read, "tallybook.request")
    [serve] = children(spans, request, "bookie.serve")
    assert within(serve, request)
    assert within(request, read)
    assert serve.attributes["request"] == "ReadEntry"
    assert (serve.attributes["cached_batches"], serve.attributes["stored_batches"]) == (1, 0)
    # Its writer had no tracing, so no bookie has a span of its add.
    told = [span for span in endpoint.spans[before:] if span.attributes.get("ledger_id") == writer.id]
    assert {span.name for span in told} <= {"tallybook.read", "tallybook.request", "bookie.serve"}
    assert not any(SECRET in body for body in endpoint.bodies)


async def test_a_read_out_of_the_archive_has_the_reads_of_the_object_store(cli, traced, endpoint, s3_server):
    env = {
        "AWS_ENDPOINT_URL": s3_server, "AWS_REGION": "us-east-1", "AWS_CONFIG_FILE": "/dev/null",
        "AWS_SHARED_CREDENTIALS_FILE": "/dev/null", "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_ACCESS_KEY_ID": "any", "AWS_SECRET_ACCESS_KEY": "any",
    }  # fmt: skip
    async with client(traced, "") as silent, await silent.create_ledger() as writer:
        await writer.append(SECRET)
    run = await asyncio.to_thread(
        traced, "offload", "run", "--once", "--archive", "s3://bucket/traces", *NOW, "--json", **env
    )
    assert run.code == 0, run.err
    with pytest.MonkeyPatch.context() as patch:
        for name, value in env.items():
            patch.setenv(name, value)
        async with client(traced, endpoint.traces) as one:
            reader = await one.open_ledger(writer.id)
            assert reader.metadata.copies_released
            assert (await reader.read_entry(0)).payload == SECRET
    spans = await endpoint.trace(
        lambda span: span.name == "tallybook.read" and span.attributes["ledger_id"] == writer.id, "objects.read"
    )
    check_catalog(spans)
    [read] = [span for span in spans if not span.parent_id]
    [archive] = children(spans, read, "tallybook.archive")
    objects = children(spans, archive, "objects.read")
    assert all(within(span, archive) for span in objects)
    for span in objects:
        assert span.attributes["store"] == "s3://bucket/traces"
        assert span.attributes["object"].endswith(".parquet")
        assert span.attributes["bytes"] > 0


async def test_the_trace_of_a_gateway_caller_is_continued_or_ignored(traced, endpoint):
    settings = GatewaySettings(metadata=traced.metadata, keep_streams_s=0)
    chosen = settings.client.model_copy(update={"traces": endpoint.traces})
    async with (
        Client(traced.metadata, chosen) as one,
        serving(one, settings) as addresses,
        grpc.aio.insecure_channel(addresses.grpc) as channel,
    ):
        stub = ledger_pb2_grpc.LedgerServiceStub(channel)

        async def append(traceparent: str) -> int:
            asked = [
                pb.AppendRequest(open=pb.AppendOpen(create=pb.CreateRequest()), payloads=[SECRET]),
                pb.AppendRequest(close=pb.AppendClose()),
            ]
            call = stub.Append(asked, metadata=(("traceparent", traceparent),), timeout=PATIENCE_SECONDS)
            return [reply async for reply in call][-1].closed.ledger_id

        kept_out = await append(f"{CALLER}-00")
        continued = await append(f"{CALLER}-01")
        strange = await append("00-not-a-trace")
    spans = await endpoint.trace(
        lambda span: span.name == "gateway.call" and span.parent_id == CALLER[-16:],
        *3 * ("bookie.journal.write",),
    )
    check_catalog(spans)
    [call] = [span for span in spans if span.name == "gateway.call"]
    assert call.attributes["method"] == "LedgerService/Append"
    [add] = children(spans, call, "tallybook.add")
    assert add.attributes["ledger_id"] == continued
    assert {span.trace_id for span in spans} == {CALLER[3:35]}
    # An invalid header counts as none: sampled by chance, which here is always.
    await endpoint.trace(lambda span: span.name == "tallybook.add" and span.attributes["ledger_id"] == strange)
    assert not [span for span in endpoint.spans if span.attributes.get("ledger_id") == kept_out]
