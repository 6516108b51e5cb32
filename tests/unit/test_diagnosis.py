"""The diagnosis of recorded numbers: each verdict, its evidence, and the priority of causes."""

from __future__ import annotations

import asyncio
import re
from itertools import chain
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallybook.cli.metric_catalogs import ALL_CATALOGS
from tallybook.core.answers import Incarnation
from tallybook.core.errors import BookieUnavailable, MetadataUnavailable
from tallybook.metadata.metered_store import MetadataLoad
from tallybook.metadata.store import BookieInfo
from tallybook.repair.diagnosis import bookie, network, processes, verdict
from tallybook.repair.diagnosis.causes import ADVICE, MEANINGS, Cause
from tallybook.repair.diagnosis.samples import Point, Sample, SampleDelta
from tallybook.repair.diagnosis.sampling import THIS_COMMAND, ClusterSampler
from tallybook.repair.diagnosis.verdict import Diagnosis, diagnose
from tallybook.runtime.clock import RealClock
from tallybook.runtime.metrics.catalog import MetricKind

SECONDS = 10.0
Numbers = dict[str, float]
"""Growth in 10 s by series, written as in Prometheus with at most one label: ``name{label="value"}``."""

BOOKIE: Numbers = {
    "tallybook_bookie_streams": 0,
    "tallybook_bookie_disk_used_fraction": 0.4,
    "tallybook_bookie_disk_free_bytes": 1e11,
    "tallybook_journals": 1,
    "tallybook_process_loop_cpu_seconds_total": 3,
    "tallybook_process_loop_lag_seconds_sum": 0.04,
    "tallybook_process_loop_lag_seconds_count": 40,
    "tallybook_bookie_add_batches_total": 20_000,
    "tallybook_bookie_add_seconds_sum": 40,
    "tallybook_bookie_add_seconds_count": 20_000,
    "tallybook_journal_device_seconds_total": 4,
    "tallybook_journal_write_seconds_sum": 4,
    "tallybook_journal_write_seconds_count": 8_000,
    "tallybook_journal_commit_seconds_sum": 7,
    "tallybook_journal_commit_seconds_count": 8_000,
    "tallybook_journal_commits_total": 8_000,
    "tallybook_journal_bytes_total": 4e8,
    "tallybook_bookie_read_seconds_sum": 2,
    "tallybook_bookie_read_seconds_count": 2_000,
    'tallybook_bookie_read_batches_total{source="cache"}': 2_000,
    "tallybook_bookie_checkpoint_busy_seconds_total": 2,
    'tallybook_bookie_checkpoint_stage_busy_seconds_total{stage="append"}': 1,
    'tallybook_bookie_checkpoint_stage_busy_seconds_total{stage="index"}': 0.5,
    "tallybook_metadata_read_seconds_sum": 0.02,
    "tallybook_metadata_read_seconds_count": 10,
}
"""One that is well and has something to do."""
GAUGES = {info.name for catalog in ALL_CATALOGS.values() for info in catalog if info.kind is MetricKind.GAUGE}


def sample(name: str, at: float, numbers: Numbers, part: float) -> Sample:
    """``numbers``, or ``part`` of them where they are counters."""
    points = []
    for series, value in numbers.items():
        found = re.fullmatch(r'([a-z_]+)(?:\{([a-z]+)="([^"]*)"\})?', series)
        assert found, series
        labels = frozenset({(found[2], found[3])} if found[2] else ())
        points.append(Point(found[1], labels, value if found[1] in GAUGES else 100 + value * part))
    return Sample(name, at, points)


def change_of(numbers: Numbers, name: str = "b1") -> SampleDelta:
    return SampleDelta(sample(name, 50.0, numbers, 0), sample(name, 50.0 + SECONDS, numbers, 1))


def diagnosis(**of: Numbers) -> Diagnosis:
    changes = [change_of(numbers, name) for name, numbers in of.items()]
    return diagnose({each.name: each.before for each in changes}, {each.name: each.after for each in changes})


CAUSES: dict[str, tuple[Cause, Numbers]] = {
    "a checkpoint that finds no room": (Cause.DISK_FULL, {"tallybook_bookie_disk_full_seconds_total": 9}),
    "a disk so full that adds are refused": (
        Cause.DISK_FULL,
        {"tallybook_bookie_read_only": 1, "tallybook_bookie_disk_used_fraction": 0.96},
    ),
    "large writes without a pause": (
        Cause.JOURNAL,
        {"tallybook_journal_device_seconds_total": 9.5, "tallybook_journal_bytes_total": 8e9},
    ),
    "records that wait for many writes": (
        Cause.JOURNAL,
        {"tallybook_journal_device_seconds_total": 9.5, "tallybook_journal_write_seconds_sum": 9.5,
         "tallybook_journal_commit_seconds_sum": 60},
    ),
    "small writes without a pause": (
        Cause.DEVICE,
        {"tallybook_journal_device_seconds_total": 9.5, "tallybook_journal_write_seconds_sum": 9.5,
         "tallybook_journal_commit_seconds_sum": 15},
    ),
    "few writes, each of which takes long": (
        Cause.DEVICE,
        {"tallybook_journal_device_seconds_total": 2, "tallybook_journal_write_seconds_sum": 2,
         "tallybook_journal_write_seconds_count": 40, "tallybook_journal_commits_total": 40,
         "tallybook_journal_bytes_total": 4e5},
    ),
    "adds that wait while entry logs are written": (
        Cause.FLUSH,
        {'tallybook_bookie_add_stall_seconds_total{where="write_cache"}': 4,
         'tallybook_bookie_checkpoint_stage_busy_seconds_total{stage="append"}': 8},
    ),
    "adds refused while entry logs are synced": (
        Cause.FLUSH,
        {'tallybook_bookie_refused_adds_total{reason="room in the journal"}': 300,
         'tallybook_bookie_checkpoint_stage_busy_seconds_total{stage="sync"}': 8},
    ),
    "adds that wait while the index is written": (
        Cause.INDEX,
        {'tallybook_bookie_add_stall_seconds_total{where="journal"}': 4,
         'tallybook_bookie_checkpoint_stage_busy_seconds_total{stage="index_sync"}': 8},
    ),
    "questions to the index without a pause": (
        Cause.INDEX,
        {"tallybook_bookie_index_lookup_busy_seconds_total": 9, "tallybook_bookie_index_lookup_seconds_sum": 30,
         "tallybook_bookie_index_lookup_seconds_count": 3_000, "tallybook_bookie_entry_log_read_seconds_sum": 2},
    ),
    "reads from the disk without a pause": (
        Cause.READS,
        {"tallybook_bookie_entry_log_read_busy_seconds_total": 9, "tallybook_bookie_entry_log_read_seconds_sum": 30,
         "tallybook_bookie_entry_log_read_seconds_count": 3_000, "tallybook_bookie_read_seconds_sum": 32},
    ),
    "an event loop that only computes": (Cause.CPU, {"tallybook_process_loop_cpu_seconds_total": 9.7}),
    "timers that come late": (Cause.CPU, {"tallybook_process_loop_lag_seconds_sum": 8}),
    "metadata that take long": (Cause.METADATA, {"tallybook_metadata_read_seconds_sum": 4}),
    "metadata that do not answer": (
        Cause.METADATA, {'tallybook_metadata_errors_total{error="MetadataUnavailable"}': 2},
    ),
    "metadata that hang": (
        Cause.METADATA,
        {"tallybook_metadata_read_busy_seconds_total": 9.9, "tallybook_metadata_read_under_way": 1,
         "tallybook_metadata_read_seconds_count": 2},
    ),
    "adds refused because there are too many": (
        Cause.OVERLOADED, {'tallybook_bookie_refused_adds_total{reason="bytes in flight"}': 5_000},
    ),
}  # fmt: skip


@pytest.mark.parametrize(("cause", "numbers"), CAUSES.values(), ids=CAUSES)
def test_the_bottleneck_of_a_bookie_is_named_with_the_numbers_that_say_so(cause: Cause, numbers: Numbers):
    found = diagnosis(b1=BOOKIE | numbers, b2=BOOKIE)
    assert found.verdict is cause
    assert [finding.process for finding in found.findings] == ["b1"]
    evidence = found.findings[0].evidence
    assert any(each.above is not None and each.value >= each.above for each in evidence)
    assert found.sentence == f"{cause.value} (b1): {MEANINGS[cause]}; {ADVICE[cause]}"


OFFLOADER: Numbers = {
    "tallybook_offload_leads": 1, "tallybook_offload_waiting_ledgers": 12,
    "tallybook_archive_request_busy_seconds_total": 3,
    "tallybook_archive_request_seconds_sum": 3, "tallybook_archive_request_seconds_count": 30,
}  # fmt: skip


@pytest.mark.parametrize(
    ("numbers", "cause"),
    [
        ({'tallybook_archive_tries_total{answer="busy"}': 3}, Cause.ARCHIVE),
        ({'tallybook_archive_tries_total{answer="failed"}': 3}, Cause.ARCHIVE),
        ({"tallybook_archive_wait_seconds_total": 5}, Cause.ARCHIVE),
        ({"tallybook_archive_request_busy_seconds_total": 9}, Cause.ARCHIVE),
        (
            {"tallybook_archive_request_busy_seconds_total": 9, "tallybook_offload_waiting_ledgers": 0},
            Cause.CLIENTS,
        ),
    ],
    ids=["wants fewer", "fails", "makes wait", "is busy", "nothing waits for it"],
)
def test_an_object_store_that_takes_less_than_there_is_is_named(numbers: Numbers, cause: Cause):
    found = diagnosis(b1=BOOKIE, o1=OFFLOADER | numbers)
    assert found.verdict is cause
    assert (found.findings[0].process == "o1") == (cause is Cause.ARCHIVE)


GATEWAY: Numbers = {
    "tallybook_gateway_streams": 3, "tallybook_gateway_calls_total": 1_000,
    "tallybook_client_add_seconds_sum": 46, "tallybook_client_add_seconds_count": 20_000,
}  # fmt: skip


def test_time_between_bookies_and_their_client_is_the_networks():
    assert diagnosis(b1=BOOKIE, g1=GATEWAY).verdict is Cause.CLIENTS
    far = GATEWAY | {"tallybook_client_add_seconds_sum": 900}
    found = diagnosis(b1=BOOKIE, g1=far)
    assert (found.verdict, found.findings[0].process) == (Cause.NETWORK, "g1")
    late = far | {"tallybook_process_loop_lag_seconds_sum": 1.6, "tallybook_process_loop_lag_seconds_count": 40}
    assert diagnosis(b1=BOOKIE, g1=late).verdict is Cause.CLIENTS, "the client was late itself"


def test_a_bookie_that_is_slower_than_the_others_is_not_taken_for_the_network():
    """Each add is in one bookie for 2 ms, and in the other, which has few of them, for 45."""
    slow = BOOKIE | {"tallybook_bookie_add_seconds_sum": 90, "tallybook_bookie_add_seconds_count": 2_000}
    gateway = GATEWAY | {"tallybook_client_add_seconds_sum": 900, "tallybook_client_add_seconds_count": 20_000}
    assert Cause.NETWORK not in {finding.cause for finding in diagnosis(b1=BOOKIE, b2=slow, g1=gateway).findings}


def test_nothing_that_is_waited_for_means_that_the_clients_are_the_limit_and_says_how_much_is_left():
    found = diagnosis(b1=BOOKIE, b2=BOOKIE | {"tallybook_bookie_read_only": 1})  # read-only by order: no full disk
    assert found.verdict is Cause.CLIENTS
    assert found.verdict.is_healthy
    told = {each.what: each.value for each in found.findings[0].evidence}
    assert told["batches added"] == 4_000
    assert told["of the time the busiest device writes a journal"] == pytest.approx(0.4)
    overloaded = diagnosis(b1=BOOKIE, g1=GATEWAY | {"tallybook_gateway_calls_rejected_total": 100})
    assert (overloaded.verdict, overloaded.findings[0].process) == (Cause.OVERLOADED, "g1")
    # A write that began before the first poll counts no more time than there was.
    stuck = BOOKIE | {"tallybook_journal_device_seconds_total": 40, "tallybook_journal_write_seconds_sum": 40}
    told = {each.what: each.value for each in diagnosis(b1=stuck).findings[0].evidence}
    assert told["of the time the busiest device writes a journal"] == 1.0


@pytest.mark.parametrize("silent", [{}, {"b1": "no answer"}], ids=["nobody is registered", "nobody answers"])
def test_of_a_cluster_without_a_bookie_that_answers_nothing_is_known(silent: dict[str, str]):
    gateway = change_of(GATEWAY, "g1")
    for before, after in (({}, {}), ({"g1": gateway.before}, {"g1": gateway.after})):
        found = diagnose(before, after, silent)
        assert found.verdict is Cause.UNKNOWN
        assert not found.verdict.is_healthy
        assert "nothing to do" not in found.sentence


@pytest.mark.parametrize(("numbers", "cause"), [({"tallybook_bookie_streams": 0}, "idle"), (BOOKIE, "client-bound")])
def test_what_is_said_while_some_are_silent_is_said_of_the_others(numbers: Numbers, cause: str):
    seen = change_of(numbers)
    found = diagnose({"b1": seen.before}, {"b1": seen.after}, {"b2": "no answer"})
    assert found.sentence.startswith(f"{cause}, of the processes that answer: ")
    assert "nothing to do" not in found.sentence


@pytest.mark.parametrize(("busy", "cause"), [((5, 5), Cause.CLIENTS), ((9.5, 0.5), Cause.DEVICE)])
def test_of_several_journals_the_busiest_decides_and_none_is_busy_for_more_than_all_of_the_time(busy, cause: Cause):
    device = "tallybook_journal_device_seconds_total"
    plain = {name: value for name, value in BOOKIE.items() if name != device}
    two = plain | {"tallybook_journals": 2, **{f'{device}{{journal="{at}"}}': each for at, each in enumerate(busy)}}
    found = diagnosis(b1=two)
    assert found.verdict is cause
    told = [each.value for each in found.findings[0].evidence if "device writes" in each.what]
    assert told == [pytest.approx(max(busy) / SECONDS)]


@pytest.mark.parametrize(
    ("process", "numbers", "cause"),
    [
        ("b1", BOOKIE | {'tallybook_metadata_errors_total{error="MetadataUnavailable"}': 1}, Cause.METADATA),
        ("o1", OFFLOADER | {'tallybook_archive_tries_total{answer="busy"}': 1,
                            'tallybook_archive_tries_total{answer="ok"}': 1}, Cause.ARCHIVE),
        ("o1", OFFLOADER | {'tallybook_archive_tries_total{answer="failed"}': 20,
                            'tallybook_archive_tries_total{answer="ok"}': 2_000}, Cause.ARCHIVE),
    ],
    ids=["one operation without an answer", "one request too many", "one request in a hundred"],
)  # fmt: skip
def test_what_happens_once_or_rarely_is_reported_and_decides_nothing(process: str, numbers: Numbers, cause: Cause):
    found = diagnosis(**({"b1": BOOKIE} | {process: numbers}))
    assert found.verdict is Cause.CLIENTS
    assert [(finding.cause, finding.process) for finding in found.findings] == [(Cause.CLIENTS, ""), (cause, process)]
    worse = diagnosis(**({"b1": BOOKIE} | {process: numbers} | {"b2": BOOKIE | CAUSES["timers that come late"][1]}))
    assert [finding.cause for finding in worse.findings] == [Cause.CPU, cause]


def test_a_full_disk_comes_first_then_what_is_used_up_most_and_that_too_much_is_asked_last():
    worse = {"tallybook_process_loop_cpu_seconds_total": 9.9, "tallybook_journal_device_seconds_total": 8.5}
    refused = {'tallybook_bookie_refused_adds_total{reason="bytes in flight"}': 50_000}
    found = diagnosis(b1=BOOKIE | worse | refused, b2=BOOKIE | {"tallybook_bookie_disk_full_seconds_total": 1})
    assert [finding.cause for finding in found.findings] == [Cause.DISK_FULL, Cause.CPU, Cause.DEVICE, Cause.OVERLOADED]


def test_a_process_of_which_nothing_can_be_said_is_named_with_the_reason():
    well, again = change_of(BOOKIE, "b1"), change_of(BOOKIE, "b2")
    before = {"b1": well.before, "b2": again.after, "b3": change_of(BOOKIE, "b3").before}
    restarted = Sample("b2", again.after.at + 1, [Point("tallybook_process_loop_cpu_seconds_total", frozenset(), 0.1)])
    found = diagnose(before, {"b1": well.after, "b2": restarted}, {"b4": "no answer"})
    assert found.processes == ("b1",)
    assert found.silent == {"b2": "was restarted in between", "b3": "answered only once", "b4": "no answer"}


@given(st.dictionaries(st.sampled_from(sorted({s for _, n in CAUSES.values() for s in n} | set(BOOKIE))),
                       st.floats(0, 1e12)))  # fmt: skip
def test_any_numbers_give_a_verdict_and_every_finding_has_evidence_above_its_threshold(numbers: Numbers):
    found = diagnosis(b1={"tallybook_bookie_streams": 0, **numbers})
    assert found.findings
    for finding in found.findings:
        assert 0 <= finding.score <= 1
        assert finding.evidence
        assert all(str(each) for each in finding.evidence)
        if not finding.cause.is_healthy and finding.cause is not Cause.DISK_FULL:
            assert any(each.above is not None and each.value >= each.above for each in finding.evidence)


def test_every_number_that_is_looked_at_is_one_that_a_process_shows():
    shown = {"process_cpu_seconds_total"}
    for info in chain.from_iterable(ALL_CATALOGS.values()):
        shown |= {info.name, f"{info.name}_sum", f"{info.name}_count"}
    for module in (bookie, network, processes, verdict):
        source = Path(str(module.__file__)).read_text().replace("{way}", "read")
        for name in re.findall(r'"((?:tallybook|process)_[a-z_]+)"', source):
            assert name in shown, f"{module.__name__}: {name}"


def test_every_cause_is_explained_with_what_helps():
    page = (Path(__file__).resolve().parents[2] / "docs/operate/runbook/performance.md").read_text()
    assert set(MEANINGS) == set(ADVICE) == set(Cause)
    assert set(re.findall(r"^### `([a-z-]+)`", page, re.MULTILINE)) == {cause.value for cause in Cause}


class Cluster:
    """The parts of a client that a poll needs."""

    def __init__(self, bookies: dict[str, BookieInfo], *, away: bool = False) -> None:
        async def listed() -> dict[str, BookieInfo]:
            return bookies

        async def counter() -> int:
            if away:
                raise MetadataUnavailable("away")
            return 1

        self.clock = RealClock()
        self.membership = SimpleNamespace(bookies=listed)
        self.load = MetadataLoad(self.clock)
        self.store = SimpleNamespace(id_counter=lambda: self.load.read(counter()))
        self.metadata_load = self.load


def registered(name: str, http_address: str) -> BookieInfo:
    return BookieInfo(name, "10.0.0.7:3181", Incarnation(name, 1), http_address=http_address)


async def hang(_address: str, _path: str) -> str:
    """A process that never answers."""
    await asyncio.Event().wait()
    raise AssertionError


async def test_bookies_are_found_by_their_registration_and_those_that_do_not_answer_are_named():
    asked: list[str] = []

    async def fetch(address: str, path: str) -> str:
        asked.append(address)
        assert path == "/metrics"
        if address == "10.0.0.2:80":
            raise BookieUnavailable("connection refused")
        if address == "10.0.0.3:80":
            return "<html>"
        return "# TYPE tallybook_bookie_streams gauge\ntallybook_bookie_streams 3.0\n"

    bookies = {
        **{f"b{number}": registered(f"b{number}", f"10.0.0.{number}:80") for number in (1, 2, 3)},
        "b4": registered("b4", "0.0.0.0:80"), "b5": registered("b5", ""),
    }  # fmt: skip
    found = await ClusterSampler(Cluster(bookies), ["10.0.0.9:81"], fetch).diagnosis(0.01)  # type: ignore[arg-type]
    assert found.processes == ("10.0.0.9:81", "b1", "b4", THIS_COMMAND)
    assert set(found.silent) == {"b2", "b3", "b5"}
    assert "connection refused" in found.silent["b2"]
    assert "10.0.0.7:80" in asked, "on every interface means, on the one that clients use"
    assert found.sentence.startswith("idle, of the processes that answer: ")
    assert found.verdict is Cause.IDLE


async def test_many_processes_that_hang_cost_one_deadline_together_and_are_named(monkeypatch):
    monkeypatch.setattr("tallybook.repair.diagnosis.sampling.ALL_SECONDS", 0.2)

    many = {f"b{number}": registered(f"b{number}", f"10.0.0.1:{number}") for number in range(1, 101)}
    async with asyncio.timeout(5):
        found = await ClusterSampler(Cluster(many), [], hang).sample()  # type: ignore[arg-type]
    assert set(found.silent) == set(many)
    assert found.silent["b100"] == "no answer from 10.0.0.1:100 within 0 s for all processes"


async def test_metadata_that_do_not_answer_this_command_are_the_verdict(monkeypatch):
    monkeypatch.setattr("tallybook.repair.diagnosis.sampling.PROBE_SECONDS", 0.01)
    found = await ClusterSampler(Cluster({}, away=True), [], hang).diagnosis(0.2)  # type: ignore[arg-type]
    assert (found.verdict, found.findings[0].process) == (Cause.METADATA, THIS_COMMAND)
