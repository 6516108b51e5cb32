"""Credentials that only Azurite refuses: moto accepts any key. Collected where ``make test-azure`` has started one."""

import pytest

from tallybook.archive.objects.open import open_store
from tallybook.archive.objects.retries import RetrySettings
from tallybook.core.errors import ArchiveDenied
from tallybook.runtime.clock import RealClock
from tallybook.runtime.rng import SystemRng

pytestmark = pytest.mark.azure
WORDS = {
    "container": "there is no such container",
    "key": "see AZURE_STORAGE_ACCOUNT_KEY|keys are missing",
    "account": "HTTP 40",
}


@pytest.mark.parametrize("wrong", WORDS)
async def test_a_container_or_a_key_that_is_not_right_is_refused_in_words(azure_url, wrong, monkeypatch):
    if wrong == "key":
        monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "bm90LXRoZS1rZXk=")
    if wrong == "account":
        monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "somebodyelse")
    url = "az://nothing-of-that-name/mine" if wrong == "container" else azure_url
    store = await open_store(url, RealClock(), SystemRng(), RetrySettings(first_pause=1000.0))
    upload = store.upload("ledgers/2")
    for call in (
        lambda: store.put("ledgers/1", b"x"),
        lambda: store.read("ledgers/1", 0, 1),
        lambda: store.info("ledgers/1"),
        lambda: store.delete("ledgers/1"),
        lambda: anext(store.list()),
        lambda: written(upload),
    ):
        with pytest.raises(ArchiveDenied, match=WORDS[wrong]) as raised:
            await call()
        assert "bm90LXRoZS1rZXk=" not in raised.value.message
    await upload.abort()
    await store.close()


async def written(upload):
    await upload.write(bytes(17 << 20))
    await upload.finish()
