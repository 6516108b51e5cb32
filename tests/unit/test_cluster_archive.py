"""Caches of a client for its cluster's archive: bounded by settings, and opened on first use."""

from pathlib import Path

from tallybook.archive.metrics import ARCHIVE_METRICS, ARCHIVE_READER_METRICS
from tallybook.client.cluster_archive import ClusterArchive
from tallybook.core.limits import KIB
from tallybook.core.settings import ClientSettings
from tallybook.metadata.uri import open_metadata
from tallybook.runtime.clock import RealClock
from tallybook.runtime.rng import SystemRng


async def test_caches_of_an_archive_are_as_large_as_configured(tmp_path: Path) -> None:
    clock, rng = RealClock(), SystemRng()
    metadata = await open_metadata(
        f"sqlite://{tmp_path}/metadata.db", create=True, clock=clock, rng=rng, timeout_seconds=10
    )
    (tmp_path / "archive").mkdir()
    settings = ClientSettings(archive_index_bytes=64 * KIB, archive_cache_bytes=32 * KIB)
    archive = ClusterArchive(metadata.store, clock, rng, settings, url=f"file://{tmp_path}/archive")
    assert archive.readings() == {}, "nothing is opened to be looked at"
    await archive._opened()
    told = archive.readings()
    assert set(told) == {info.stat for info in (*ARCHIVE_METRICS.catalog, *ARCHIVE_READER_METRICS.catalog)}
    assert (told["cache_max_bytes_index"], told["cache_max_bytes_pages"]) == (64 * KIB, 32 * KIB)
    await archive.close()
    await metadata.close()
