"""Writes to an encrypted archive need keys, in every process and by every call."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tallybook.archive.encryption_record import encrypted_since, record_encryption
from tallybook.archive.objects.encryption.store import EncryptedStore
from tallybook.archive.objects.open import OpenedStore
from tallybook.client.client import Client
from tallybook.core.errors import ArchiveDenied, ArchiveKeyMissing, DamagedFile
from tallybook.core.settings import OffloadSettings
from tallybook.metadata.memory import MemoryMetadata
from tallybook.offload.open_archive import open_archive
from tallybook.offload.service import OffloadService, status_of
from tallybook.runtime.rng import SeededRng
from tallybook.runtime.security.archive_keys import add_key

from ..support.archive_keys import InMemoryKeys


@pytest.fixture
def place(tmp_path: Path, new_cluster: Callable[..., str]) -> dict[str, str]:
    (tmp_path / "archive").mkdir()
    add_key(tmp_path / "keys.json")
    return {
        "metadata": new_cluster(),
        "url": f"file://{tmp_path}/archive",
        "keys": str(tmp_path / "keys.json"),
    }


async def test_an_offloader_that_ran_without_keys_stops_before_its_next_pass_once_another_seals(place):
    async with (
        Client(place["metadata"]) as client,
        open_archive(client, place["url"], record=True) as without,
    ):
        offloader = without.offloader(client, OffloadSettings())
        await offloader.run_pass()
        async with open_archive(client, None, record=True, archive_keys=place["keys"]):
            pass
        with pytest.raises(ArchiveKeyMissing, match="TALLYBOOK_ARCHIVE_KEYS"):
            await offloader.run_pass()
        assert offloader.totals.rounds == 1


async def test_listing_needs_no_keys(place):
    async with Client(place["metadata"]) as client:
        async with open_archive(client, place["url"], record=True, archive_keys=place["keys"]) as archive:
            assert await encrypted_since(archive.metadata) is not None
            await archive.check_ready()
        async with open_archive(client, None):
            pass
        with pytest.raises(ArchiveKeyMissing):
            async with open_archive(client, None, record=True):
                pass


async def test_new_metadata_beside_a_bucket_with_encrypted_objects_do_not_make_it_a_plain_one(place, new_cluster):
    async with (
        Client(place["metadata"]) as client,
        open_archive(client, place["url"], record=True, archive_keys=place["keys"]) as archive,
    ):
        await archive.store.put("ledgers/1", b"x")
    async with Client(new_cluster("other")) as other:
        with pytest.raises(ArchiveKeyMissing):
            async with open_archive(other, place["url"], record=True):
                pass


async def test_an_unlisted_bucket_is_read_again_before_anything_is_written_and_the_status_reports_it(
    place, monkeypatch
):
    settings = OffloadSettings()

    async def denied(_store: OpenedStore) -> bool:
        raise ArchiveDenied("these keys list nothing")

    async with Client(place["metadata"]) as client:
        async with open_archive(client, place["url"], record=True) as archive:
            await OffloadService(archive, archive.offloader(client, settings), settings).work_off()
        monkeypatch.setattr(OpenedStore, "any_encrypted", denied)
        async with open_archive(client, None, record=True) as archive:
            service = OffloadService(archive, archive.offloader(client, settings), settings)
            with pytest.raises(ArchiveDenied, match="list nothing"):
                await service.work_off()
            assert (await status_of(archive))["last_error"] == "these keys list nothing"
            monkeypatch.undo()
            await service.work_off()
            # By an offloader whose metadata are gone.
            await EncryptedStore(archive.store.below, archive.workers, InMemoryKeys()).put("ledgers/1", b"x")
            with pytest.raises(ArchiveKeyMissing):
                await service.work_off()


async def test_since_when_an_archive_is_encrypted_is_written_once():
    store = MemoryMetadata(SeededRng(1)).client().store
    assert await encrypted_since(store) is None
    await record_encryption(store, 17)
    await record_encryption(store, 18)
    assert await encrypted_since(store) == 17


@pytest.mark.parametrize(
    "value", [b"", b"[]", b"{}", b'{"format":1}', b'{"format":1,"since_ms":true}', b'{"format":0}']
)
async def test_a_record_that_cannot_be_understood_is_no_reason_to_write_plain(value):
    store = MemoryMetadata(SeededRng(1)).client().store
    await store.write_record("archive/sealed", value, None)
    with pytest.raises(DamagedFile):
        await encrypted_since(store)
