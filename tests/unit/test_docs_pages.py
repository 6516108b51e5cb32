"""Pages of the docs are short and are listed, and a search over them finds the terms of the field."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = {str(path.relative_to(DOCS)): path.read_text("utf-8") for path in sorted(DOCS.rglob("*.md"))}
MAX_LINES = 300
each_page = pytest.mark.parametrize("page", PAGES)


@each_page
def test_a_page_is_short_enough_to_be_read_at_once(page: str) -> None:
    assert PAGES[page].count("\n") < MAX_LINES, "split the page"


def links_from(name: str) -> set[Path]:
    """The files that a page points at."""
    folder = (DOCS / name).parent
    targets = re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", PAGES[name])
    return {(folder / target).resolve() for target in targets}


@each_page
def test_a_page_is_in_the_list_of_all_pages(page: str) -> None:
    path = DOCS / page
    if page != "README.md" and not page.startswith("adr/"):
        own_list = str(path.with_name("README.md").relative_to(DOCS))
        listed = links_from("README.md") | (links_from(own_list) if own_list in PAGES else set())
        assert path in listed


GENERATED = ("reference/cli/", "reference/metrics/", "reference/configuration.md", "reference/spark-options.md")
SEARCHED = {
    "../README.md": (ROOT / "README.md").read_text("utf-8").lower(),
    **{name: text.lower() for name, text in PAGES.items() if not name.startswith(GENERATED)},
}
# What a newcomer types who knows BookKeeper, Kafka, Pulsar, S3 or databases.
TERMS = """
    ack quorum, append-only, at least once, authentication, authorization, consensus, consumer group, durability,
    exactly once, failover, fencing, fsync, high watermark, idempotent, ordering, quorum, replication factor,
    split brain, throughput, write-ahead log, offset, partition, dead letter, schema registry, log compaction, topic,
    back pressure, bit rot, checksum, crc32c, garbage collection, hedged read, latency percentiles, scrubbing,
    write amplification, benchmark, compaction, retention, snapshot,
    availability zone, autorecovery, decommission, drain, re-replication, rebalancing, rack-aware placement,
    backup, restore, disaster recovery, geo-replication, rolling upgrade, tiered storage, erasure coding,
    access control, acl, audit log, encryption at rest, jwt, mtls, multi-tenant, namespace, oidc, quotas, rate limit,
    rbac, tls, capacity planning, health check, docker, grafana, helm, iceberg, kubernetes, opentelemetry, parquet,
    prometheus
"""


@pytest.mark.parametrize("term", [term.strip() for term in TERMS.split(",")])
def test_a_search_finds_a_term_of_the_field(term: str) -> None:
    assert [name for name, text in SEARCHED.items() if term in text]
