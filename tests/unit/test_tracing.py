"""Spans within one process: parents, trace headers of requests, and the cost without tracing."""

import asyncio
import dataclasses
import io
import json
import re
import socket
import time
from pathlib import Path

import pytest
from opentelemetry import trace

from tallybook.cli.client_server import client_settings_of as client_of
from tallybook.cli.cluster_client import cluster as cluster_of
from tallybook.client.client import Client
from tallybook.client.connection.add_stream import AddStream
from tallybook.client.load import ClientLoad
from tallybook.core.errors import EntryAbsent, InvalidConfig, LedgerFenced
from tallybook.core.limits import MIB
from tallybook.core.settings import ClientSettings, GatewaySettings
from tallybook.core.trace_option import parse_traces
from tallybook.gateway.auth import PERMISSIONS
from tallybook.gateway.interceptor import STREAMING_METHODS, span_of
from tallybook.proto import ledger_pb2, stream_pb2
from tallybook.runtime.clock import RealClock
from tallybook.runtime.logging import logger, set_up_logging
from tallybook.runtime.tasks import Tasks
from tallybook.runtime.tracing import otel
from tallybook.runtime.tracing.catalog import TRACE_METRICS
from tallybook.runtime.tracing.opening import open_tracer
from tallybook.runtime.tracing.port import NO_TRACER, begin, current_span, is_decided, part, under, whole
from tallybook.wire import messages as wire
from tallybook.wire.batches import FrameCache, frame_batches
from tallybook.wire.lanes import Lane

from ..simulated import scenario
from ..spans import SPAN_NAMES, SPANS
from ..support.tracing import MemoryTracer
from ..support.wire_bench import batch_of, bench, received, reply_on

HEADER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
OTHER = "00-11111111111111111111111111111111-2222222222222222-01"


# -- the seam -------------------------------------------------------------------------------


def test_without_tracing_a_child_span_is_a_no_op():
    with begin(NO_TRACER, "tallybook.read") as root, part("bookie.index", rows=1) as piece:
        assert (root, piece, current_span(), is_decided()) == (None, None, None, False)
    assert NO_TRACER.follow(HEADER, "bookie.serve") is None
    assert part("bookie.index") is part("bookie.entry_log")


def test_a_part_belongs_to_what_is_current_and_ends_with_its_block():
    tracer = MemoryTracer()
    with pytest.raises(EntryAbsent), begin(tracer, "tallybook.read", ledger_id=7), part("tallybook.archive"):
        raise EntryAbsent("not here")
    read, archive = tracer.spans
    assert (archive.parent_id, archive.trace_id) == (read.context.span_id, read.trace_id)
    assert (read.ends, archive.ends, read.attributes) == (1, 1, {"ledger_id": 7})
    assert isinstance(archive.error, EntryAbsent)
    assert current_span() is None


def test_what_was_decided_against_has_no_parts_and_nothing_below_decides_again():
    tracer = MemoryTracer()
    tracer.sampling = False
    with begin(tracer, "gateway.call") as call:
        tracer.sampling = True
        with begin(tracer, "tallybook.read") as read, part("tallybook.archive") as piece:
            assert (call, read, piece, is_decided()) == (None, None, None, True)
    assert tracer.spans == []
    with begin(tracer, "tallybook.read") as read:
        assert read is tracer.spans[0]


async def test_a_task_that_outlives_the_span_it_was_started_in_belongs_to_no_trace():
    tracer, go_on = MemoryTracer(), asyncio.Event()

    async def outlive() -> tuple[bool, bool]:
        within = current_span() is not None
        await go_on.wait()
        return within, is_decided() or current_span() is not None

    tasks = []
    for sampling in (True, False):
        tracer.sampling = sampling
        with begin(tracer, "tallybook.read"):
            tasks.append(asyncio.create_task(outlive()))
            await asyncio.sleep(0)
    go_on.set()
    assert await asyncio.gather(*tasks) == [(True, False), (False, False)]


def test_lines_that_are_logged_within_a_span_say_of_which_trace_they_are():
    stream, tracer = io.StringIO(), MemoryTracer()
    set_up_logging(style="json", stream=stream)
    with whole(tracer.follow(HEADER, "bookie.serve")):
        logger("test").info("inside")
    logger("test").info("outside")
    inside, outside = map(json.loads, stream.getvalue().splitlines())
    assert inside["trace_id"] == HEADER[3:35]
    assert "trace_id" not in outside


# -- the wire -------------------------------------------------------------------------------


class Sent:
    """A stream that keeps what it is given."""

    peer = "b1:1"

    def __init__(self) -> None:
        self.messages: asyncio.Queue[bytes] = asyncio.Queue()

    async def send(self, message: bytes) -> None:
        self.messages.put_nowait(message)

    def abort(self) -> None:
        """Nothing is left."""

    async def close(self) -> None:
        """Nothing is left."""


async def test_a_batch_that_is_traced_comes_first_in_its_message_and_others_say_nothing():
    stream, tasks = Sent(), Tasks("test", lambda name, error: pytest.fail(f"{name}: {error!r}"))
    adds = AddStream(stream, 4 * MIB, tasks, FrameCache(), ClientLoad(RealClock()), add_timeout_s=10.0)
    tracer, answers = MemoryTracer(), []
    adds.add(batch_of(0), b"", answers.append)
    adds.add(batch_of(1), b"", answers.append)
    with begin(tracer, "tallybook.add"):
        adds.add(batch_of(2), b"", answers.append)
    adds.add(batch_of(3), b"", answers.append)
    async with asyncio.timeout(10):
        first, second = await stream.messages.get(), await stream.messages.get()
    request, plain, traced = tracer.spans[1], wire.decode_adds(first), wire.decode_adds(second)
    assert (plain.traceparent, [bytes(each) for each in plain.batches]) == ("", [batch_of(0), batch_of(1)])
    assert (traced.traceparent, [bytes(each) for each in traced.batches]) == (
        request.traceparent, [batch_of(2), batch_of(3)]
    )  # fmt: skip
    # To the byte what it was before there were traces.
    assert first == frame_batches(wire.encode_attach(wire.Attach(1, b"")), (batch_of(0), batch_of(1)))
    assert request.events == ["sent"]
    adds.end()
    await asyncio.sleep(0)
    assert (request.ends, request.error, len(answers)) == (1, "BookieUnavailable", 4)
    await adds.close()
    await tasks.close()


@bench()
async def test_a_bookie_traces_sampled_requests_only(made):
    tracer = made.service._tracer = MemoryTracer()
    adds, _ = await made.attached()
    reads, _ = await made.open(Lane.READ)
    for first, header in enumerate([HEADER[:-2] + "00", "what is this?", "", HEADER]):
        front = wire.encode_traced(header) if header else b""
        await adds.send(frame_batches(front, (batch_of(2 * first), batch_of(2 * first + 1))))
        acks = []
        while len(acks) < 2:
            acks += wire.decode_acks(await received(adds))
        assert [ack.answer.code for ack in acks] == [0, 0]
        await reads.send(wire.encode_request(first + 1, wire.ReadEntry(1, 2 * first), header))
        await reply_on(reads, first + 1)
    await made.world.clock.sleep(1)
    add, read = tracer.spans
    assert (add.name, read.name) == ("bookie.serve", "bookie.serve")
    assert add.trace_id == read.trace_id == HEADER[3:35]
    assert (add.attributes["request"], add.attributes["first_entry_id"], add.attributes["code"]) == ("Add", 6, 0)
    assert (read.attributes["request"], read.attributes["first_entry_id"]) == ("ReadEntry", 6)
    assert (add.ends, read.ends) == (1, 1)
    await reads.send(wire.encode_request(9, wire.ReadEntry(1, 99), HEADER))
    await reply_on(reads, 9)
    await made.world.clock.sleep(1)
    assert isinstance(tracer.spans[-1].error, EntryAbsent)
    for stream in (adds, reads):
        await stream.close()


# -- a client -------------------------------------------------------------------------------


def traced_client(cluster, tracer: MemoryTracer) -> Client:
    return Client(dataclasses.replace(cluster.client().world, tracer=tracer))


@scenario(bookies=3)
async def test_a_batch_is_one_span_from_its_first_append_to_its_confirmation(cluster):
    tracer = MemoryTracer()
    client = traced_client(cluster, tracer)
    writer = await client.create_ledger()
    await asyncio.gather(*[writer.append(b"entry") for _ in range(5)])
    [add] = tracer.spans
    assert (add.name, add.events, add.ends, add.error) == ("tallybook.add", ["sealed", "confirmed"], 1, None)
    assert add.attributes == {
        "ledger_id": writer.id, "first_entry_id": 0, "last_entry_id": 4, "entries": 5, "payload_bytes": 25,
    }  # fmt: skip
    tracer.sampling = False
    await writer.append(b"entry")
    assert len(tracer.spans) == 1
    await writer.close()
    await client.close()


@scenario(bookies=3)
async def test_an_append_in_a_trace_of_the_program_has_its_batch_traced_or_linked(cluster):
    tracer = MemoryTracer()
    tracer.sampling = False
    client = traced_client(cluster, tracer)
    writer = await client.create_ledger()
    together = []
    for around in ("", HEADER, HEADER, OTHER, OTHER, ""):
        tracer.around = around
        together.append(writer.append_nowait(b"entry"))
    for pending in together:
        await pending
    [add] = tracer.spans
    assert (add.trace_id, add.parent_id) == (HEADER[3:35], int(HEADER[36:52], 16))
    assert add.links == [OTHER]
    assert add.attributes["entries"] == 6
    await writer.close()
    await client.close()


@scenario(bookies=3)
async def test_what_a_writer_that_dies_had_in_flight_ends_with_the_error(cluster, client):
    tracer = MemoryTracer()
    traced = traced_client(cluster, tracer)
    writer = await traced.create_ledger()
    await writer.append(b"entry")
    await client.recover_ledger(writer.id)
    with pytest.raises(LedgerFenced):
        await writer.append(b"entry")
    assert [(span.ends, type(span.error)) for span in tracer.spans] == [(1, type(None)), (1, LedgerFenced)]
    await traced.close()


@scenario(bookies=3)
async def test_each_read_is_a_span_and_each_piece_of_a_range(cluster, client):
    tracer = MemoryTracer()
    traced = traced_client(cluster, tracer)
    async with await client.create_ledger() as writer:
        await asyncio.gather(*[writer.append(b"entry") for _ in range(5)])
    reader = await traced.open_ledger(writer.id)
    await reader.read_entry(3)
    assert [entry.entry_id async for entry in reader.read(1, 4)] == [1, 2, 3, 4]
    assert [(span.name, span.attributes["first_entry_id"], span.ends) for span in tracer.spans] == [
        ("tallybook.read", 3, 1), ("tallybook.read", 1, 1),
    ]  # fmt: skip
    await traced.close()


# -- a gateway ------------------------------------------------------------------------------


class Calling:
    """A call with a header."""

    peer = "somebody"

    def __init__(self, traceparent: str) -> None:
        self.presented = type("Presented", (), {"traceparent": traceparent})


@pytest.mark.parametrize(
    ("method", "traceparent", "traces", "below"),
    [
        ("LedgerService/Describe", "", 1, False),
        ("LedgerService/Append", "", 0, True),
        ("LedgerService/Append", "nonsense", 0, True),
        ("LedgerService/Append", HEADER, 1, False),
        ("LedgerService/Append", HEADER[:-2] + "00", 0, False),
    ],
)
def test_a_call_is_traced_as_its_caller_says_and_a_stream_never_as_a_whole_by_chance(
    method, traceparent, traces, below
):
    tracer = MemoryTracer()
    with span_of(tracer, method, Calling(traceparent)):
        assert len(tracer.spans) == traces
        with begin(tracer, "tallybook.read"):
            pass
    assert [span.name for span in tracer.spans if not span.parent_id] == (
        ["tallybook.read"] if below else ["gateway.call"] if traces and not traceparent else []
    )
    assert span_of(NO_TRACER, method, Calling(traceparent)).__enter__() is None


def test_a_gateway_has_its_client_traced_and_a_command_goes_by_its_environment(monkeypatch, tmp_path):
    settings = GatewaySettings(metadata="memory:", traces="http://c:1,share=1")
    assert client_of(settings).traces == settings.traces
    assert (client_of(settings).service, ClientSettings().service) == ("tallybook-gateway", "tallybook-client")
    (tmp_path / "metadata.db").touch()
    monkeypatch.setenv("TALLYBOOK_TRACES", "http://c:1")
    assert cluster_of(f"sqlite:///{tmp_path}/metadata.db")._settings.traces == "http://c:1"
    monkeypatch.setenv("TALLYBOOK_TRACES", "c:1")
    with pytest.raises(InvalidConfig, match="not an OTLP over HTTP endpoint"):
        cluster_of(f"sqlite:///{tmp_path}/metadata.db")


def test_every_method_that_has_many_answers_counts_as_a_stream():
    services = {
        "LedgerService": ledger_pb2.DESCRIPTOR.services_by_name["LedgerService"],
        "StreamService": stream_pb2.DESCRIPTOR.services_by_name["StreamService"],
    }
    for method in PERMISSIONS:
        service, _, name = method.partition("/")
        assert services[service].methods_by_name[name].server_streaming == (name in STREAMING_METHODS), method


# -- OpenTelemetry --------------------------------------------------------------------------


@pytest.mark.parametrize("endpoint", ["http://10.0.0.9:4318", "http://127.0.0.1.example.com"])
def test_with_security_no_span_leaves_this_host_in_plain_text(endpoint):
    with pytest.raises(InvalidConfig, match="https://"):
        open_tracer(endpoint, "test", security="/security")
    option = parse_traces(endpoint.replace("http:", "https:"))
    assert option is not None
    option.require_private_endpoint()


@pytest.mark.parametrize("host", ["LocalHost", "127.9.9.9:4318", "[::1]:4318"])
def test_with_security_a_trace_collector_on_this_host_may_go_without_tls(host):
    option = parse_traces(f"http://{host}")
    assert option is not None
    option.require_private_endpoint()


@pytest.mark.parametrize("security", ["", "/security"])
async def test_spans_for_this_host_are_sent_directly_despite_proxies_of_the_environment(security, monkeypatch):
    took: dict[str, list[bytes]] = {"proxy": [], "collector": []}

    def taker(name: str):
        async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            took[name].append(await reader.readline())
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
            writer.close()

        return asyncio.start_server(take, "127.0.0.1", 0)

    async with await taker("proxy") as proxy, await taker("collector") as collector:
        for name in ("http_proxy", "all_proxy", "HTTP_PROXY", "ALL_PROXY"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.sockets[0].getsockname()[1]}")
        for name in ("no_proxy", "NO_PROXY"):
            monkeypatch.delenv(name, raising=False)
        port = collector.sockets[0].getsockname()[1]
        tracer = open_tracer(f"http://127.0.0.1:{port},share=1", "test", security=security)
        with begin(tracer, "tallybook.read"):
            pass
        await tracer.close()
    assert took["proxy"] == []
    assert took["collector"] == [b"POST /v1/traces HTTP/1.1\r\n"]


@pytest.mark.parametrize("listens", [True, False], ids=["silent", "away"])
async def test_an_endpoint_that_takes_nothing_costs_spans_and_a_bounded_end_and_nothing_else(listens, monkeypatch):
    monkeypatch.setattr(otel, "CLOSE_SECONDS", 0.2)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        if listens:
            taken.listen()
        tracer = open_tracer(f"http://127.0.0.1:{taken.getsockname()[1]},share=1", "test")
        for _ in range(otel.MAX_WAITING + 100):
            with begin(tracer, "tallybook.read"):
                pass
        began = time.monotonic()
        await tracer.close()
        assert time.monotonic() - began < 20
        with begin(tracer, "tallybook.read"):
            pass
    readings = tracer.readings()
    assert readings["spans_sent"] == 0
    assert readings["spans_dropped"] >= 100
    assert set(readings) == {info.stat for info in TRACE_METRICS}


async def test_every_text_of_a_span_is_cut_and_no_provider_of_the_program_is_replaced():
    before = trace.get_tracer_provider()
    tracer = open_tracer("http://127.0.0.1:9,share=1", "test")
    try:
        assert trace.get_tracer_provider() is before
        span = tracer.root("tallybook.read", object="k" * 5000)
        assert len(span._span.attributes["tallybook.object"]) == 256
        # A program's own span that is current is what ours are part of.
        with trace.use_span(trace.NonRecordingSpan(trace.SpanContext(5, 6, is_remote=False))):
            assert tracer.root("tallybook.read") is None
        flags = trace.TraceFlags(trace.TraceFlags.SAMPLED)
        with trace.use_span(trace.NonRecordingSpan(trace.SpanContext(5, 6, is_remote=False, trace_flags=flags))):
            assert tracer.surrounding() == "00-" + f"{5:032x}-{6:016x}" + "-01"
            ours = tracer.root("tallybook.read")
            assert ours.trace_id == f"{5:032x}"
            with under(ours):
                assert tracer.surrounding() == ours.traceparent
        assert tracer.surrounding() == ""
        # One that has ended is what tasks that outlive it still see, and nothing begins in it any more.
        with trace.use_span(ours._span):
            assert tracer.root("tallybook.read").trace_id == tracer.surrounding()[3:35] == ours.trace_id
            ours.end()
            assert tracer.surrounding() == ""
            assert tracer.root("tallybook.read").trace_id != ours.trace_id
        # These are not sampled.
        assert tracer.follow(HEADER[:-2] + "00", "bookie.serve") is None
        assert tracer.follow("nonsense", "bookie.serve") is None
        assert tracer.follow(HEADER, "bookie.serve").trace_id == HEADER[3:35]
    finally:
        tracer._exporter.give_up()
        await tracer.close()


def test_the_page_of_traces_shows_every_span_and_no_other():
    page = (Path(__file__).resolve().parents[2] / "docs/operate/tracing.md").read_text()
    shown = [line for line in page.splitlines() if re.match(r"\| `[a-z_.]+` \| (client|bookie|gateway) \|", line)]
    assert shown == [
        f"| `{span.name}` | {span.where} | {span.text} | {quoted(span.attributes)} | {quoted(span.events)} |"
        for span in SPANS
    ]
    assert len(SPAN_NAMES) == len(SPANS)


def quoted(names: tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in names)
