"""URLs of object stores, and keys of objects."""

import os

import pytest

from tallybook.archive.format.schema import object_key
from tallybook.archive.objects.keys import is_key
from tallybook.archive.objects.open import AzureUrl, FileUrl, GcsUrl, MemoryUrl, S3Url, open_store, parse_url
from tallybook.core.errors import ArchiveDenied, InvalidConfig
from tallybook.runtime.clock import RealClock
from tallybook.runtime.rng import SystemRng


@pytest.mark.parametrize(
    ("url", "meant"),
    [
        ("s3://bucket", S3Url("bucket", "")),
        ("s3://bucket/", S3Url("bucket", "")),
        ("s3://my.bucket-1/a/b", S3Url("my.bucket-1", "a/b/")),
        ("s3://bucket/a/", S3Url("bucket", "a/")),
        ("gs://bucket", GcsUrl("bucket", "")),
        ("gs://my.bucket_1/a/b/", GcsUrl("my.bucket_1", "a/b/")),
        ("az://container", AzureUrl("container", "")),
        ("az://my-container/a", AzureUrl("my-container", "a/")),
        ("file:///srv/archive", FileUrl("/srv/archive")),
        ("file:///srv/my%20archive/", FileUrl("/srv/my archive")),
        ("file:///./archive", FileUrl("./archive")),
        ("file:///../archive", FileUrl("../archive")),
        ("memory:", MemoryUrl()),
    ],
)
def test_a_url_is_understood(url, meant):
    assert parse_url(url) == meant


@pytest.mark.parametrize(
    "url",
    ["", "s3:", "s3://", "s3:///a", "s3:bucket", "s3://b", "s3://bucket//a", "s3://bucket/../a", "s3://bucket/.a",
     "s3://bucket/a b", "s3://bucket:9000/a", "file:", "file:///", "file://host/a", "file:/a", "memory:x", "gs://b/a",
     "http://a/b", "/srv/archive", "s3://bucket/a\n", "gs:", "gs://", "gs:///a", "gs://Bucket/a", "gs://-bucket",
     "gs://bucket/../a", "gs://bucket:443/a", "gs://bucket//a", "az://", "az://ab", "az://Container", "az://a--b",
     "az://a_b", "az://account.blob.core.windows.net", "az://container/.a", "az://container/a\\b", "GS://bucket",
     "az://" + 64 * "a", "s3a://bucket/a", "abfs://container/a", "gcs://bucket"],
)  # fmt: skip
def test_what_is_no_url_is_refused_with_what_would_be_one(url):
    with pytest.raises(InvalidConfig, match=r"s3://bucket/prefix|letters, digits"):
        parse_url(url)


@pytest.mark.parametrize(
    "url",
    [
        "s3://AKIA:secret@bucket/a",
        "s3://bucket/a?secret=b",
        "s3://bucket/a#secret",
        "gs://secret@bucket/a",
        "az://account:secret@container/a",
        "az://container/a?sv=1&sig=secret",
        "abfss://secret@account/a",
    ],
)
def test_a_url_with_keys_in_it_is_refused_and_not_repeated(url):
    with pytest.raises(InvalidConfig) as raised:
        parse_url(url)
    assert "secret" not in raised.value.message


async def test_a_directory_that_is_not_there_is_not_made(tmp_path):
    with pytest.raises(ArchiveDenied, match="the directory does not exist"):
        await open_store(f"file://{tmp_path}/nothing", RealClock(), SystemRng())
    assert not (tmp_path / "nothing").exists()


async def test_a_remote_endpoint_needs_tls_unless_allowed_without_and_always_needs_keys(
    monkeypatch,
):
    for variable in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "PROFILE"):
        monkeypatch.delenv(f"AWS_{variable}", raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://storage.example:9000")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")
    with pytest.raises(InvalidConfig, match="does not use TLS"):
        await open_store("s3://bucket/a", RealClock(), SystemRng())
    with pytest.raises(ArchiveDenied, match="AWS_ACCESS_KEY_ID"):
        await open_store("s3://bucket/a", RealClock(), SystemRng(), allow_http=True)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    store = await open_store("s3://bucket/a", RealClock(), SystemRng(), allow_http=True)
    assert store.url == "s3://bucket/a"
    await store.close()


CLOUDS = {
    "gs://bucket/a": {"STORAGE_EMULATOR_HOST": "http://{}"},
    "gs://bucket/b": {"STORAGE_EMULATOR_HOST": "{}"},
    "gs://bucket/c": {"GOOGLE_BASE_URL": "http://{}"},
    "az://container/a": {"AZURE_STORAGE_ACCOUNT_NAME": "account", "AZURE_STORAGE_ENDPOINT": "http://{}"},
    "az://container/b": {"AZURE_STORAGE_ACCOUNT_NAME": "account", "AZURE_ENDPOINT": "http://{}"},
    "az://container/c": {"AZURE_STORAGE_USE_EMULATOR": "true", "AZURITE_BLOB_STORAGE_URL": "http://{}"},
}


@pytest.fixture
def bare(monkeypatch):
    """An environment without credentials and endpoints."""
    for variable in list(os.environ):
        if variable.startswith(("GOOGLE_", "AZUR", "STORAGE_EMULATOR")):
            monkeypatch.delenv(variable)
    return monkeypatch


@pytest.mark.parametrize("url", CLOUDS)
async def test_every_endpoint_elsewhere_needs_tls_unless_it_is_allowed_to_go_without(url, bare):
    for host, refused in (("storage.example:9000", True), ("127.0.0.1:9000", False), ("localhost", False)):
        for variable, value in CLOUDS[url].items():
            bare.setenv(variable, value.format(host))
        if refused:
            with pytest.raises(InvalidConfig, match="does not use TLS"):
                await open_store(url, RealClock(), SystemRng())
        store = await open_store(url, RealClock(), SystemRng(), allow_http=refused)
        assert store.url == url
        await store.close()


@pytest.mark.parametrize(
    "endpoint", ["ftp://127.0.0.1", "http://", "http://user:secret@127.0.0.1", "http://[::1", "//x"]
)
async def test_what_is_no_endpoint_is_refused_and_not_repeated(endpoint, bare):
    bare.setenv("GOOGLE_BASE_URL", endpoint)
    with pytest.raises(InvalidConfig, match="endpoint") as raised:
        await open_store("gs://bucket/a", RealClock(), SystemRng())
    assert "secret" not in raised.value.message


@pytest.mark.parametrize(
    ("url", "variables", "words"),
    [
        ("az://container/a", {}, "AZURE_STORAGE_ACCOUNT_NAME"),
        (
            "az://container/a",
            {"AZURE_STORAGE_ACCOUNT_NAME": "a", "AZURE_STORAGE_ACCOUNT_KEY": "!secret"},
            "is not a valid key",
        ),
        ("gs://bucket/a", {"GOOGLE_SERVICE_ACCOUNT": "/nothing"}, "cannot be read"),
        ("gs://bucket/a", {"GOOGLE_SERVICE_ACCOUNT_KEY": '{"secret": 1}'}, "service account, in a variable"),
        ("gs://bucket/a", {"GOOGLE_APPLICATION_CREDENTIALS": "/nothing"}, "cannot be read"),
    ],
)
async def test_an_environment_that_cannot_be_right_is_refused_in_words_of_our_own(url, variables, words, bare):
    for variable, value in variables.items():
        bare.setenv(variable, value)
    with pytest.raises(InvalidConfig, match=words) as raised:
        await open_store(url, RealClock(), SystemRng())
    assert "secret" not in raised.value.message
    assert raised.value.__cause__ is None


def test_the_keys_of_archives_are_keys():
    assert is_key(object_key("0b9b3a2e-8f57-4b38-9c58-0a53a30a3c77", [1]))
    assert is_key(object_key("0b9b3a2e-8f57-4b38-9c58-0a53a30a3c77", [1, 2]))
