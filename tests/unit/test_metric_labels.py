"""Metric labels: values known to the code; names that users choose only where their number is bounded."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from tallybook.bookie.background.budget import BackgroundWork
from tallybook.bookie.boot_times import STEPS
from tallybook.bookie.rpc.load import METRICS as REQUEST_METRICS
from tallybook.bookie.rpc.load import REQUEST_KINDS, ServiceLoad
from tallybook.bookie.rpc.service import BookieService
from tallybook.bookie.storage.checkpoint import STAGES
from tallybook.cli.metric_catalogs import ALL_CATALOGS
from tallybook.client.load import METRICS, ClientLoad
from tallybook.client.stats import CLIENT_METRICS
from tallybook.core.access import OpenAccess
from tallybook.core.error_codes import error_classes
from tallybook.core.settings import GatewaySettings
from tallybook.core.settings.types import MAX_DIRECTORIES
from tallybook.gateway.limits import LimitUsage
from tallybook.gateway.metrics import CAUSES, GATEWAY_METRICS, METHODS, GatewayCounters, GatewayNumbers
from tallybook.metadata.metered_store import METADATA_METRICS, MetadataLoad
from tallybook.offload.metrics import OFFLOAD_METRICS, OffloadNumbers
from tallybook.offload.totals import Backlog, Totals
from tallybook.repair.auditor import AuditReport
from tallybook.repair.metrics import REPAIR_METRICS, RepairNumbers
from tallybook.repair.replicator import ReplicatorTotals
from tallybook.runtime.clock import RealClock
from tallybook.runtime.grpc.load import ABOUT, CODES, GRPC_METRICS, GrpcLoad
from tallybook.runtime.http.load import DROPS, HTTP_METRICS, ROUTES, STATUSES, HttpLoad
from tallybook.runtime.http.server import READY_METRICS
from tallybook.runtime.metrics.catalog import MetricInfo, MetricKind
from tallybook.runtime.metrics.histogram import SECONDS
from tallybook.runtime.metrics.registry import StatsCollector
from tallybook.runtime.metrics.usage import Meter, MetricValue
from tallybook.runtime.security.denial_log import DENIAL_METRICS, DenialLog
from tallybook.runtime.security.process_security import SECURITY_METRICS
from tallybook.runtime.tasks import Tasks
from tallybook.runtime.tcp.load import DROPS as TCP_DROPS
from tallybook.sim.deterministic import SimDisk, World, run_seed
from tallybook.sim.stage.disk_bookie import DiskBookie
from tallybook.stream.load import STREAM_METRICS, StreamLoad
from tallybook.stream.records.dedup import DedupMemory

from ..support.memory_cluster import MemoryCluster

GATEWAY = GatewaySettings(metadata="m")
OFFLOADER: Any = SimpleNamespace(totals=Totals(), backlog=Backlog(), streamed_bytes=0)
AUDITOR: Any = SimpleNamespace(audit=AuditReport(), passes=1, walks=1, published=1)
REPLICATOR: Any = SimpleNamespace(totals=ReplicatorTotals(), mending=Meter(RealClock()))
COPIER: Any = SimpleNamespace(copied_batches=0, copied_bytes=0)
CERTIFICATE = SimpleNamespace(expires_at=datetime.now(UTC))

EVERYTHING = [info for catalog in ALL_CATALOGS.values() for info in catalog]
BOUNDED = {
    "answer": {"ok", "busy", "failed", "refused"},
    "cache": {"index", "pages"},
    "cause": set(CAUSES),
    "code": set(CODES),
    "error": {error.__name__ for error in error_classes()},
    "journal": {str(at) for at in range(MAX_DIRECTORIES)},
    "kind": set(REQUEST_KINDS),
    "method": {*METHODS, *ABOUT},
    "outcome": {"sent", "dropped", "failed"},
    "reason": None,  # ``admission.REASONS`` and those of repairs
    "route": set(ROUTES),
    "source": {"cache", "entry_log"},
    "stage": set(STAGES),
    "status": set(STATUSES),
    "step": set(STEPS),
    "task": {"collector", "scrub"},
    "where": {"write_cache", "journal"},
    "work": {work.value for work in BackgroundWork},
    "why": {*DROPS, *TCP_DROPS},
}
"""Every label there is, and its values."""
CHOSEN_BY_USERS = {"namespace", "stream", "subscription"}
"""Labels of ``LAG_METRICS``; a sweep measures a bounded number of subscriptions."""
MOST_SERIES = 700
"""The maximum number of series of one catalog; a histogram has one for each of its buckets."""


def test_a_metric_has_a_label_that_is_known_with_a_value_that_is_known():
    for info in [info for info in EVERYTHING if info.label is not None]:
        name, value = info.label
        assert name in BOUNDED, f"{info.name}: a new label must have values that are bounded, and stand here"
        assert BOUNDED[name] is None or value in BOUNDED[name]
    assert {label for info in EVERYTHING for label in info.labels} == CHOSEN_BY_USERS


@pytest.mark.parametrize("catalog", ALL_CATALOGS.values(), ids=ALL_CATALOGS)
def test_a_process_shows_no_more_series_than_its_catalogs_have_lines(catalog: tuple[MetricInfo, ...]):
    series = sum(len(SECONDS) + 3 if info.kind is MetricKind.HISTOGRAM else 1 for info in catalog)
    assert series <= MOST_SERIES


def test_a_number_and_a_name_with_its_label_stand_in_one_line_of_all_catalogs():
    for catalog in ALL_CATALOGS.values():
        stats = [info.stat for info in catalog]
        assert len(stats) == len(set(stats))
    shown = [(info.name, info.label) for info in EVERYTHING]
    assert len(shown) == len(set(shown))
    kinds = {(info.name, info.kind, info.label and info.label[0]) for info in EVERYTHING}
    assert len(kinds) == len({name for name, *_ in kinds})


def test_a_metric_of_any_name_that_is_not_in_the_catalog_is_not_shown():
    def read() -> dict[str, float]:
        return {"calls": 1, **{f'ledger{{id="{at}"}}\n': at for at in range(1000)}}

    catalog = (MetricInfo("calls", "tallybook_calls_total", MetricKind.COUNTER, "Calls."),)
    [family] = StatsCollector(catalog, read).collect()
    assert len(family.samples) == 1


def test_requests_of_an_unknown_kind_and_errors_of_an_unknown_code_make_no_series():
    load = ServiceLoad(RealClock())
    before = set(REQUEST_METRICS.readings(load))
    load.served("NoneType", 0.0)
    load.errors.count(4711)
    after = REQUEST_METRICS.readings(load)
    assert set(after) == before
    assert after["errors_TallybookError"] == 1


def client_stats() -> dict[str, MetricValue]:
    async def main(world: World) -> dict[str, MetricValue]:
        async with MemoryCluster(world, bookies=0).client() as client:
            return {**client.stats(), **METRICS.readings(ClientLoad(world.clock))}

    return {name: value for name, value in run_seed(1, main).value.items() if not name.startswith("spans_")}


@pytest.mark.parametrize(
    ("metrics", "part"),
    [
        (METADATA_METRICS, MetadataLoad(RealClock())),
        (STREAM_METRICS, StreamLoad()),
        (HTTP_METRICS, HttpLoad(RealClock(), 1)),
        (READY_METRICS, SimpleNamespace(why_not_ready=lambda: None)),
        (GRPC_METRICS, GrpcLoad()),
        (DENIAL_METRICS, DenialLog(RealClock(), OpenAccess())),
        (SECURITY_METRICS, SimpleNamespace(identity=CERTIFICATE, reloads=0, failures=0)),
        (
            GATEWAY_METRICS,
            GatewayNumbers(GatewayCounters(), LimitUsage(), GatewaySettings(metadata="m"), DedupMemory(1)),
        ),
        (OFFLOAD_METRICS, OffloadNumbers(OFFLOADER, leads=True)),
        (REPAIR_METRICS, RepairNumbers(AUDITOR, REPLICATOR, COPIER, leads=True)),
    ],
    ids=[
        *("metadata", "streams", "http", "ready", "grpc", "refusals", "security", "gateway", "offload", "repair"),
    ],
)
def test_every_metric_has_a_value(metrics, part):
    assert set(metrics.readings(part)) == {info.stat for info in metrics.catalog}


def test_every_metric_of_a_client_has_a_value():
    assert set(client_stats()) == {info.stat for info in CLIENT_METRICS}


@pytest.mark.parametrize("leads", [True, False])
def test_findings_of_a_leader_are_not_reported_after_its_term(leads: bool) -> None:
    offload = OFFLOAD_METRICS.readings(OffloadNumbers(OFFLOADER, leads))
    repair = REPAIR_METRICS.readings(RepairNumbers(AUDITOR, REPLICATOR, COPIER, leads))
    assert ("waiting_ledgers" in offload, "bookies_lost" in repair) == (leads, leads)
    assert (offload["leads"], repair["leads"]) == (leads, leads)


def test_a_bookie_shows_a_value_for_each_of_its_metrics():
    async def main(world: World) -> set[str]:
        stage = DiskBookie(SimDisk(world.rng), world.clock)
        bookie = await stage.boot()
        settings, tasks = stage.settings, Tasks("service", pytest.fail)
        service = BookieService(bookie, settings, world.clock, tasks, "", pytest.fail)
        readings = {*bookie.readings(), *service.readings()}
        await stage.stop()
        return readings

    others = {f"journal_device_seconds_{at}" for at in range(1, MAX_DIRECTORIES)}
    metrics = {info.stat for info in ALL_CATALOGS["A bookie"]}
    assert run_seed(1, main).value == metrics - others, "it has one journal"
