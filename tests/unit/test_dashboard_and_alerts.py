"""Grafana dashboards and Prometheus alerts: queries name existing metrics and labels, and every alert is tested."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tallybook.cli.metric_catalogs import ALL_CATALOGS
from tallybook.runtime.metrics.catalog import MetricInfo, MetricKind

DOCKER = Path(__file__).resolve().parents[2] / "docker"
DASHBOARD = json.loads((DOCKER / "grafana/dashboards/tallybook.json").read_text())
DESCRIPTION = tomllib.loads((DOCKER / "grafana/dashboard.toml").read_text())
RULES = [
    rule
    for group in yaml.safe_load((DOCKER / "prometheus/alerts.yml").read_text())["groups"]
    for rule in group["rules"]
]
OF_PROMETHEUS = {
    *("up", "process_resident_memory_bytes", "process_open_fds", "process_max_fds", "process_start_time_seconds"),
}
OF_EVERY_SERIES = {"instance", "job"}
WORDS = {
    *[
        "absent",
        "and",
        "by",
        "changes",
        "count",
        "histogram_quantile",
        "ignoring",
        "increase",
        "max",
        "max_over_time",
        "on",
        "or",
    ],
    *["present_over_time", "rate", "sum", "time", "topk", "vector"],
    *OF_EVERY_SERIES,
}


def series() -> dict[str, set[str]]:
    """The names of series that processes show, and the labels of each."""
    found: dict[str, set[str]] = {name: set() for name in OF_PROMETHEUS}
    for info in [info for catalog in ALL_CATALOGS.values() for info in catalog]:
        for name, labels in shown(info):
            found.setdefault(name, set()).update(labels)
    return found


def shown(info: MetricInfo) -> Iterator[tuple[str, set[str]]]:
    labels = {info.label[0]} if info.label else set(info.labels)
    if info.kind is MetricKind.HISTOGRAM:
        yield f"{info.name}_bucket", {*labels, "le"}
        yield f"{info.name}_sum", labels
        yield f"{info.name}_count", labels
    else:
        yield info.name, labels


SERIES = series()


def complaints(query: str) -> list[str]:
    """Defects of a query: an unknown name or label, or the rate of a gauge."""
    found = []
    bare = re.sub(r'"[^"]*"', '""', query)
    matchers = re.findall(r"([a-z_:]+)\{([^}]*)\}", bare)
    for name, inside in matchers:
        used = set(re.findall(r"([a-z_]+)\s*(?:=~|!~|!=|=)", inside))
        found += [f"{name} has no label {label}" for label in used - SERIES.get(name, set()) - OF_EVERY_SERIES]
    grouped = {
        label
        for labels in re.findall(r"(?:by|ignoring|on)\s*\(([^)]*)\)", bare)
        for label in re.split(r"[,\s]+", labels)
    }
    plain = re.sub(r"\{[^}]*\}|\[[^]]*\]|(?:by|ignoring|on)\s*\([^)]*\)", " ", bare)
    names = set(re.findall(r"[a-z_][a-z0-9_]*", plain)) - WORDS
    found += [f"there is no {name}" for name in sorted(names - set(SERIES))]
    known = {label for name in names for label in SERIES.get(name, set())} | OF_EVERY_SERIES
    found += [f"nothing in it has a label {label}" for label in sorted(grouped - known - {""})]
    for name in re.findall(r"(?:rate|increase)\(([a-z_]+)", bare):
        if not name.endswith(("_total", "_bucket", "_sum", "_count")):
            found.append(f"{name} does not only grow")
    return found


@pytest.mark.parametrize(
    "query",
    [
        "tallybook_nothing_total",
        'rate(tallybook_bookie_refused_adds_total{why="x"}[5m])',
        "rate(tallybook_bookie_inflight_bytes[5m])",
        "rate(tallybook_bookie_add_seconds[5m])",
        "sum by (ledger) (rate(tallybook_bookie_add_bytes_total[5m]))",
    ],
)
def test_a_query_that_shows_nothing_is_found(query: str):
    assert complaints(query)


def test_every_panel_asks_for_what_there_is():
    panels = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
    assert len(panels) > 40
    for panel in panels:
        for target in panel["targets"]:
            assert complaints(target["expr"]) == [], panel["title"]


def test_every_alert_asks_for_what_there_is_says_what_it_means_and_is_tried():
    tried = (DOCKER / "prometheus/alerts_test.yml").read_text()
    assert len(RULES) > 15
    for rule in RULES:
        assert complaints(rule["expr"]) == [], rule["alert"]
        assert rule["labels"]["severity"] in {"critical", "warning"}
        assert rule["annotations"]["summary"].endswith(".")
        assert rule["annotations"]["description"]
        assert f'alertname="{rule["alert"]}"' in tried


def test_every_alert_is_explained():
    page = (DOCKER.parent / "docs/operate/monitoring.md").read_text()
    explained = set(re.findall(r"^\| `(Tallybook[A-Za-z]+)` \|", page, re.MULTILINE))
    assert explained == {rule["alert"] for rule in RULES}


def test_every_alert_is_a_symptom_of_something_that_can_be_dealt_with():
    pages = "\n".join(page.read_text() for page in (DOCKER.parent / "docs/operate/runbook").glob("*.md"))
    symptoms = re.findall(r"^\*Symptom:\*.*?(?=\n\n)", pages, re.MULTILINE | re.DOTALL)
    told = {name for symptom in symptoms for name in re.findall(r"`(Tallybook[A-Za-z]+)`", symptom)}
    assert told == {rule["alert"] for rule in RULES}


def test_the_dashboard_has_every_row_and_no_two_panels_in_one_place():
    assert [row["title"] for row in DESCRIPTION["rows"]] == [
        panel["title"] for panel in DASHBOARD["panels"] if panel["type"] == "row"
    ]
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells
    numbers = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(numbers) == len(set(numbers))
