"""Who may write to a sealed archive: those with keys, and nobody else, however they came to run."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tallybook.archive.objects.open import OpenedStore
from tallybook.archive.objects.sealed import SealedStore
from tallybook.archive.sealing import sealed_since, settle_sealing
from tallybook.client.client import Client
from tallybook.core.config import OffloadSettings
from tallybook.core.errors import ArchiveDenied, ArchiveKeyMissing, DamagedFile
from tallybook.metadata.memory import MemoryMetadata
from tallybook.offload.process import opened
from tallybook.offload.service import OffloadService, status_of
from tallybook.runtime.rng import SeededRng
from tallybook.runtime.security.archive_keys import add_key
from tallybook.sim.stage.held_keys import HeldKeys


@pytest.fixture
def place(tmp_path: Path, new_cluster: Callable[..., str]) -> dict[str, str]:
    (tmp_path / "archive").mkdir()
    add_key(tmp_path / "keys.json")
    return {
        "metadata": new_cluster(),
        "url": f"file://{tmp_path}/archive",
        "keys": str(tmp_path / "keys.json"),
    }


async def test_an_offloader_that_ran_without_keys_stops_before_its_next_round_once_another_seals(place):
    async with (
        Client(place["metadata"]) as client,
        opened(client, place["url"], settle=True) as without,
    ):
        offloader = without.offloader(client, OffloadSettings())
        await offloader.round()
        async with opened(client, None, settle=True, archive_keys=place["keys"]):
            pass
        with pytest.raises(ArchiveKeyMissing, match="TALLYBOOK_ARCHIVE_KEYS"):
            await offloader.round()
        assert offloader.totals.rounds == 1


async def test_who_only_looks_needs_no_keys(place):
    async with Client(place["metadata"]) as client:
        async with opened(client, place["url"], settle=True, archive_keys=place["keys"]) as archive:
            assert await sealed_since(archive.metadata) is not None
            await archive.check_ready()
        async with opened(client, None):
            pass
        with pytest.raises(ArchiveKeyMissing):
            async with opened(client, None, settle=True):
                pass


async def test_new_metadata_beside_a_bucket_with_sealed_objects_do_not_make_it_a_plain_one(place, new_cluster):
    async with (
        Client(place["metadata"]) as client,
        opened(client, place["url"], settle=True, archive_keys=place["keys"]) as archive,
    ):
        await archive.store.put("ledgers/1", b"x")
    async with Client(new_cluster("other")) as other:
        with pytest.raises(ArchiveKeyMissing):
            async with opened(other, place["url"], settle=True):
                pass


async def test_a_bucket_that_is_not_listed_is_asked_again_before_anything_is_written_and_the_status_tells_of_it(
    place, monkeypatch
):
    settings = OffloadSettings()

    async def denied(_store: OpenedStore) -> bool:
        raise ArchiveDenied("these keys list nothing")

    async with Client(place["metadata"]) as client:
        async with opened(client, place["url"], settle=True) as archive:
            await OffloadService(archive, archive.offloader(client, settings), settings).work_off()
        monkeypatch.setattr(OpenedStore, "any_sealed", denied)
        async with opened(client, None, settle=True) as archive:
            service = OffloadService(archive, archive.offloader(client, settings), settings)
            with pytest.raises(ArchiveDenied, match="list nothing"):
                await service.work_off()
            assert (await status_of(archive))["last_error"] == "these keys list nothing"
            monkeypatch.undo()
            await service.work_off()
            # By one whose metadata have gone.
            await SealedStore(archive.store.below, archive.workers, HeldKeys()).put("ledgers/1", b"x")
            with pytest.raises(ArchiveKeyMissing):
                await service.work_off()


async def test_since_when_an_archive_is_sealed_is_written_once():
    store = MemoryMetadata(SeededRng(1)).client().store
    assert await sealed_since(store) is None
    await settle_sealing(store, 17)
    await settle_sealing(store, 18)
    assert await sealed_since(store) == 17


@pytest.mark.parametrize(
    "value", [b"", b"[]", b"{}", b'{"format":1}', b'{"format":1,"since_ms":true}', b'{"format":0}']
)
async def test_a_record_that_cannot_be_understood_is_no_reason_to_write_plain(value):
    store = MemoryMetadata(SeededRng(1)).client().store
    await store.write_record("archive/sealed", value, None)
    with pytest.raises(DamagedFile):
        await sealed_since(store)
