"""Fuzz target: texts that people write: settings, policies, names, stream positions, command options."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tallybook.archive.objects import keys
from tallybook.archive.objects.cloud.buckets import check_endpoint
from tallybook.cli.commands.health import _parse as health_address
from tallybook.cli.lines.stream_append import StreamFeeder
from tallybook.cli.lines.stream_bounds import parse_condition, parse_start, reached
from tallybook.cli.lines.stream_options import changes
from tallybook.cli.local.launcher import last_error, read_run_file
from tallybook.cli.options import assigned
from tallybook.cli.server_options import settings_of
from tallybook.core.errors import InvalidArgument, InvalidConfig, NewerFormat
from tallybook.core.settings import BookieSettings, ClientSettings, GatewaySettings, OffloadSettings, RepairSettings
from tallybook.core.trace_option import parse_traces
from tallybook.repair.diagnosis.sampling import points_in
from tallybook.runtime.http.scrape import parse_metrics
from tallybook.runtime.settings import ENVIRONMENT_PREFIX, LEVEL_SEPARATOR, load_settings
from tallybook.runtime.tracing.traceparent import decode_traceparent
from tallybook.spark.query.bounds import bounds_of, parse_bound
from tallybook.stream import names
from tallybook.stream.policy import StreamPolicy
from tallybook.stream.position import Position
from tallybook.stream.records.compression import Compression
from tallybook.stream.start import Start

from ..harness import REFUSED, Finding, Target, attempt, same

TARGET = Target(
    "texts",
    words=(
        b"3-1842-7@5f0c9a21",
        b"2026-11-01T00:00:00Z",
        b"txid:",
        b"sequence:",
        b"after:",
        b"KiB",
        b"**/",
        b"=",
        b"inf",
        b"1e999",
    ),
)

REQUIRED = {"data_directory": "/b", "metadata": "memory:"}
MODELS = (BookieSettings, ClientSettings, OffloadSettings, RepairSettings, GatewaySettings)


def some_files() -> Iterator[bytes]:
    """Settings files of several kinds of processes, each read by all of them: chosen by its length, see below."""
    for file in _files():
        for more in range(len(MODELS)):
            yield file + b"\n" * more


def _files() -> Iterator[bytes]:
    yield b'data_directory = "/b"\nmetadata = "memory:"\njournal_directories = ["/a", "/c"]\n'
    yield b'data_directory = "/b"\nmetadata = "memory:"\n[journal]\nsegment_count = 4\n'
    yield b'metadata = "memory:"\nlisten = "127.0.0.1:0"\n[client]\nmax_pending_bytes = "64MiB"\n'
    yield b"lease_s = 5\nrow_group_bytes = 8388608\nkeep_copies = true\n"
    yield b"a = " + b"[" * 5_000
    yield b"a = " + b"{a=" * 5_000
    yield b".".join([b"a"] * 5_000) + b" = 1"
    yield b"lease_s = 1e999"
    yield b"lease_s = " + b"9" * 5_000
    yield b'row_group_bytes = "' + b"9" * 400 + b'kb"'


@TARGET.decoder(
    "runtime/settings.py:load_settings",
    "runtime/settings.py:_from_file",
    "runtime/settings.py:_merge",
    "runtime/settings.py:validation_messages",
    seeds=some_files,
)
def settings_file(data: bytes) -> None:
    """A settings file, for one kind of process: all of them would take long."""
    model = MODELS[len(data) % len(MODELS)]
    with tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        attempt(InvalidConfig, lambda: load_settings(model, file=file.name, environment={}))


def some_assignments() -> Iterator[bytes]:
    """Names and values, one per line: environment variables, and values of ``--set``."""
    yield b"journal.segment_count=4\nlisten=127.0.0.1:0\njournal_directories=/a,/c"
    yield b"lease_s=5\ninterval_s=7"
    yield b"max_pending_bytes=64MiB"
    yield b"journal=1\njournal.segment_count=4"
    yield b"journal.segment_count=4\njournal=1"
    yield b"journal." + b"a." * 5_000 + b"a=1"
    yield b"no assignment"


@TARGET.decoder(
    "runtime/settings.py:_from_environment",
    "cli/options.py:assigned",
    "cli/server_options.py:settings_of",
    "core/settings/types.py:_split",
    "core/settings/types.py:_paths",
    "core/settings/types.py:address",
    seeds=some_assignments,
)
def assignments(data: bytes) -> None:
    """Settings in environment variables and on the command line."""
    given = [line for line in data.decode(errors="surrogateescape").split("\n") if line]
    overrides = attempt(InvalidConfig, assigned, given)
    attempt(InvalidConfig, settings_of, OffloadSettings, None, given)
    variables = {
        ENVIRONMENT_PREFIX + name.replace(".", LEVEL_SEPARATOR).upper(): value
        for name, _, value in (line.partition("=") for line in given)
    }
    for model in MODELS:
        required = {name: value for name, value in REQUIRED.items() if name in model.model_fields}
        if overrides is not REFUSED:
            both = {**required, **overrides}
            attempt(
                InvalidConfig, lambda model, both: load_settings(model, environment={}, overrides=both), model, both
            )
        attempt(
            InvalidConfig,
            lambda model, more: load_settings(model, environment=variables, overrides=more),
            model,
            required,
        )


def some_policies() -> Iterator[bytes]:
    """Policies as JSON, since values may be of any type."""
    yield json.dumps({"roll_bytes": "8MiB", "retention": "72h", "compression": "zstd"}).encode()
    yield json.dumps({"ensemble": 3, "write_quorum": 2, "ack_quorum": 2, "roll_after": "15m"}).encode()
    yield json.dumps({"retention": "forever", "offload_after": "default", "dedup_records": 0}).encode()
    yield b'{"roll_bytes": "' + b"9" * 400 + b'kb"}'
    yield b'{"roll_bytes": 1e999, "retention": ' + b"9" * 300 + b"}"
    yield b'{"retention": "' + b"9" * 5_000 + b'h"}'
    yield '{"retention": "٣h", "compression": "\\ud800"}'.encode()


@TARGET.decoder(
    "stream/policy.py:StreamPolicy.of", "stream/policy.py:_seconds", "stream/records/compression.py:Compression.named",
    "cli/lines/stream_options.py:changes", seeds=some_policies,
)  # fmt: skip
def policy(data: bytes) -> None:
    """The policy of a new stream."""
    found = attempt((ValueError, RecursionError), json.loads, data)
    if not isinstance(found, dict):
        attempt(InvalidArgument, Compression.named, data.decode(errors="replace"))
        return
    plain = {name: value for name, value in found.items() if isinstance(value, str | int)}
    for given in (found, changes(**plain)):
        made = attempt(InvalidArgument, lambda given: StreamPolicy.of(None, **given), given)
        if made is not REFUSED:
            again = StreamPolicy.of(None, **json.loads(json.dumps(made.model_dump(mode="json"))))
            same(again, made, "a policy")


def some_texts() -> Iterator[bytes]:
    """Positions, names, times, keys, endpoints."""
    for text in (
        "earliest", "latest", "3-1842-7@5f0c9a21", "after:3-1842-7@5f0c9a21", "1250", "2026-11-01T00:00Z", "txid:-77",
        "sequence:1000", "start", "orders/eu", "a.b/c-d=e", "http://localhost:9000", "https://[::1]/", "2026-W01-1",
        "http://collector:4318,share=0.01", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00", "txid:-9999999999999999999", "٣", "é", "e\u0301",
    ):  # fmt: skip
        yield text.encode()


@TARGET.decoder(
    "cli/lines/stream_bounds.py:parse_start",
    "cli/lines/stream_bounds.py:parse_condition",
    "spark/query/bounds.py:parse_bound",
    "spark/query/bounds.py:_as_time",
    "stream/start.py:Start.timestamp",
    "stream/start.py:_position",
    "stream/names.py:check_stream_name",
    "archive/objects/keys.py:check_key",
    "archive/objects/cloud/buckets.py:check_endpoint",
    "core/trace_option.py:parse_traces",
    "runtime/tracing/traceparent.py:decode_traceparent",
    seeds=some_texts,
)
def places_and_names(data: bytes) -> None:
    """One text, decoded as each of these."""
    text = data.decode(errors="surrogateescape")
    for parse in (parse_start, parse_bound, Start.timestamp):
        found = attempt(InvalidArgument, parse, text)
        if found is not REFUSED:
            attempt(InvalidArgument, reached, found)
    found = attempt(InvalidArgument, parse_condition, text)
    if isinstance(found, Position):
        same(str(found), text, "a position")
    for check in (
        names.check_stream_name, names.check_prefix, names.check_namespace, names.check_subscription,
        names.check_process_name, keys.check_key, keys.check_prefix,
    ):  # fmt: skip
        found = attempt(InvalidArgument, check, text)
        if found is not REFUSED:
            same(found, text, "a name")
            found.encode()
    attempt(InvalidConfig, parse_traces, text)
    trace = decode_traceparent(text)
    if trace is not None:
        same(decode_traceparent(trace.traceparent), trace, "a trace")
    for allow_http in (False, True):
        attempt(
            InvalidConfig, lambda text, allow_http: check_endpoint("url", text, allow_http=allow_http), text, allow_http
        )


def some_patterns() -> Iterator[bytes]:
    """Patterns, and names that they may fit."""
    yield b"orders/*\norders/eu"
    yield b"a/**/[bc]?\na/x/y/bz"
    yield b"**\na"
    yield b"/".join([b"**"] * 40) + b"/x\na/a/a/a/a/a/a/a"
    yield b"*a" * 60 + b"\n" + b"a" * 250 + b"b"


@TARGET.decoder("spark/query/bounds.py:bounds_of", "spark/query/bounds.py:_fits", seeds=some_patterns)
def patterns(data: bytes) -> None:
    """Patterns that select the streams of a query."""
    pattern, _, name = data.decode(errors="replace").partition("\n")
    if attempt(InvalidArgument, names.check_stream_name, name) is REFUSED:
        return
    bounds = attempt(InvalidArgument, bounds_of, "default", None, pattern, None, None)
    if bounds is not REFUSED and bounds.fits(name) and not name.startswith(bounds.prefix):
        raise Finding(f"{pattern!r} fits {name!r}, which does not begin with {bounds.prefix!r}")


def some_outputs() -> Iterator[bytes]:
    """Output of other processes of ours."""
    yield b'# HELP x y\ntallybook_adds{kind="a"} 5\ntallybook_adds 7 1700000000\ntallybook_free +Inf\nbad x\n'
    yield b'{"bookie_id": "bookie-1", "pid": 5}'
    yield b'starting\n{"error": {"code": 306, "message": "full"}}\n'
    yield b'{"error": {"code": 1e999, "message": 5}}'
    yield b'{"error": {"code": [], "message": null}}'
    yield b'{"error": []}'
    yield b'{"error": ' + b"[" * 5_000
    yield b'{"error": {"code": 30'


@TARGET.decoder(
    "runtime/http/scrape.py:parse_metrics",
    "runtime/http/scrape.py:parse_series",
    "repair/diagnosis/sampling.py:points_in",
    "cli/local/launcher.py:read_run_file",
    "cli/local/launcher.py:last_error",
    seeds=some_outputs,
)
def outputs(data: bytes) -> None:
    """Metrics, run files and errors of bookies, which may have died while they wrote them."""
    parse_metrics(data.decode(errors="replace"))
    attempt(ValueError, points_in, data.decode(errors="replace"))
    with tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        attempt(NewerFormat, read_run_file, Path(file.name))
        last_error(Path(file.name))


def some_lines() -> Iterator[bytes]:
    """Lines with a key, with an empty one, with none."""
    yield b"key=payload"
    yield b"=payload="
    yield b"payload"


@TARGET.decoder("cli/lines/stream_append.py:StreamFeeder._parts", seeds=some_lines)
def lines(data: bytes) -> None:
    """Lines of input that become records."""
    feeder: Any = StreamFeeder.__new__(StreamFeeder)
    for separator in (b"", b"=", b"\xff"):
        feeder._key_separator = separator
        key, payload = feeder._parts(data)
        same(payload if key is None else key + separator + payload, data, "a line")


def some_addresses() -> Iterator[bytes]:
    """Addresses of processes."""
    yield b"127.0.0.1:8080"
    yield b"[::]:1"
    yield b"a:" + b"9" * 5_000


@TARGET.decoder("cli/commands/health.py:_parse", seeds=some_addresses)
def addresses(data: bytes) -> None:
    """The address of the health endpoint of a process."""
    attempt(InvalidConfig, health_address, data.decode(errors="replace"))
