"""Metrics and HTTP endpoints of a process."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import platform
import re
from importlib.metadata import version
from types import SimpleNamespace

import pytest

from tallybook.archive.metrics import ARCHIVE_METRICS, ArchiveNumbers
from tallybook.archive.objects.encryption.store import EncryptedStore
from tallybook.archive.objects.memory import MemoryObjectStore
from tallybook.archive.objects.retries import RetryPolicy
from tallybook.cli.metric_catalogs import ALL_CATALOGS
from tallybook.core.errors import ArchiveBusy, ArchiveDenied, ArchiveUnavailable, InvalidConfig
from tallybook.offload.metrics import OFFLOAD_METRICS, OffloadNumbers
from tallybook.offload.totals import Backlog, Totals
from tallybook.runtime.clock import RealClock
from tallybook.runtime.http.scrape import parse_metrics
from tallybook.runtime.http.server import HttpServer
from tallybook.runtime.metrics.catalog import MetricInfo, MetricKind
from tallybook.runtime.metrics.heap import heap_usage
from tallybook.runtime.metrics.registry import Metrics
from tallybook.runtime.rng import SeededRng
from tallybook.runtime.tasks import InlineWorkers, Tasks


async def get(address: str, path: str) -> tuple[int, str]:
    host, port = address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(f"GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n".encode())
    answer = (await asyncio.wait_for(reader.read(), 10)).decode()
    writer.close()
    await writer.wait_closed()
    head, _, body = answer.partition("\r\n\r\n")
    return int(head.split()[1]), body


def died(name: str, error: BaseException) -> None:
    raise AssertionError(f"{name}: {error!r}")


async def test_health_readiness_and_metrics_are_served() -> None:
    metrics = Metrics()
    numbers = {"count": 3.0, "hits": 1.0, "misses": 2.0, "unnamed": 9.0}
    catalog = (
        MetricInfo("count", "things_total", MetricKind.COUNTER, "Things."),
        MetricInfo("hits", "looks_total", MetricKind.COUNTER, "Looks.", ("found", "yes")),
        MetricInfo("misses", "looks_total", MetricKind.COUNTER, "Looks.", ("found", "no")),
        MetricInfo("later", "later", MetricKind.GAUGE, "Not there yet."),
    )
    metrics.add(catalog, lambda: numbers)
    reason: str | None = "booting"
    tasks = Tasks("test", died)
    server = HttpServer(metrics, lambda: reason)
    await server.start("127.0.0.1:0", tasks)
    try:
        assert await get(server.address, "/healthz") == (200, "ok\n")
        assert await get(server.address, "/readyz") == (503, "booting\n")
        assert "tallybook_process_ready 0.0\n" in (await get(server.address, "/metrics"))[1]
        reason = None
        assert await get(server.address, "/readyz") == (200, "ok\n")
        assert "tallybook_process_ready 1.0\n" in (await get(server.address, "/metrics"))[1]
        labels = f'python="{platform.python_version()}",revision="unknown",version="{version("tallybook")}"'
        assert f"tallybook_build_info{{{labels}}} 1.0\n" in (await get(server.address, "/metrics"))[1]
        status, text = await get(server.address, "/metrics")
        assert status == 200
        assert "things_total 3.0" in text
        assert 'looks_total{found="no"} 2.0' in text
        assert "unnamed" not in text
        assert {"process_resident_memory_bytes", "process_start_time_seconds"} <= set(parse_metrics(text))
        before = parse_metrics(text)["tallybook_process_tasks"]
        idle = tasks.spawn(asyncio.Event().wait(), name="idle")
        _, text = await get(server.address, "/metrics")
        assert parse_metrics(text)["tallybook_process_tasks"] == before + 1
        idle.cancel()
        numbers["count"] = 4.0
        assert "things_total 4.0" in (await get(server.address, "/metrics"))[1]
        assert (await get(server.address, "/../etc/passwd"))[0] == 400
        assert (await get(server.address, "/api/v1/bookies"))[0] == 404
    finally:
        await server.close()
        await tasks.close()


async def test_an_address_that_cannot_be_bound_is_named() -> None:
    tasks = Tasks("test", died)
    first = HttpServer(Metrics(), lambda: None)
    await first.start("127.0.0.1:0", tasks)
    try:
        for listen in (first.address, "127.0.0.1", "127.0.0.1:99999", "nowhere"):
            with pytest.raises(InvalidConfig, match=re.escape(listen)):
                await HttpServer(Metrics(), lambda: None).start(listen, tasks)
    finally:
        await first.close()
        await tasks.close()


async def test_the_metrics_of_an_offloader_are_rendered() -> None:
    patience = RetryPolicy(RealClock(), SeededRng(1))
    archive = ArchiveNumbers(patience, EncryptedStore(MemoryObjectStore(RealClock()), InlineWorkers(), None))
    offloader = SimpleNamespace(totals=Totals(rounds=3), backlog=Backlog(orphans=2), streamed_bytes=5)
    for error in (None, ArchiveDenied("no"), ArchiveUnavailable("500"), ArchiveBusy("slow down")):

        async def ask(error: Exception | None = error) -> None:
            if error is not None:
                raise error

        with contextlib.suppress(ArchiveBusy, ArchiveDenied, ArchiveUnavailable):
            await patience.once("read", ask)
    patience.count_bytes("read", 7)
    metrics = Metrics()
    metrics.add_part(OFFLOAD_METRICS, OffloadNumbers(offloader, leads=True))  # type: ignore[arg-type]
    metrics.add_part(ARCHIVE_METRICS, archive)
    text = metrics.text().decode()
    for line in (
        "tallybook_offload_leads 1.0", "tallybook_offload_rounds_total 3.0", "tallybook_offload_orphans 2.0",
        "tallybook_offload_streamed_bytes_total 5.0",
        'tallybook_archive_tries_total{answer="ok"} 1.0', 'tallybook_archive_tries_total{answer="busy"} 1.0',
        'tallybook_archive_tries_total{answer="failed"} 1.0', 'tallybook_archive_tries_total{answer="refused"} 1.0',
        "tallybook_archive_read_bytes_total 7.0", "tallybook_archive_request_rate_limit 2.0",
    ):  # fmt: skip
        assert line in text


def test_names_follow_the_conventions() -> None:
    for info in itertools.chain.from_iterable(ALL_CATALOGS.values()):
        assert info.name.startswith("tallybook_")
        assert info.name.endswith("_total") == (info.kind is MetricKind.COUNTER), info.name
        assert info.help.endswith(".")


def test_what_a_process_has_in_use_and_what_it_keeps_are_distinguished():
    before = heap_usage()
    held = [bytearray(1_000_000) for _ in range(20)]
    during = heap_usage()
    assert during.used_bytes - before.used_bytes >= 15_000_000
    held.clear()
    after = heap_usage()
    assert during.used_bytes - after.used_bytes >= 15_000_000
    assert after.blocks > 0
