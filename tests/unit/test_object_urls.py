"""URLs of object stores, and the keys of objects."""

import pytest

from tallybook.archive.objects.keys import is_key
from tallybook.archive.objects.open import FileUrl, MemoryUrl, S3Url, open_store, parse_url
from tallybook.archive.schema import object_key
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
     "http://a/b", "/srv/archive", "s3://bucket/a\n"],
)  # fmt: skip
def test_what_is_no_url_is_refused_with_what_would_be_one(url):
    with pytest.raises(InvalidConfig, match=r"s3://bucket/prefix|letters, digits"):
        parse_url(url)


@pytest.mark.parametrize("url", ["s3://AKIA:secret@bucket/a", "s3://bucket/a?secret=b", "s3://bucket/a#secret"])
def test_a_url_with_keys_in_it_is_refused_and_not_repeated(url):
    with pytest.raises(InvalidConfig) as raised:
        parse_url(url)
    assert "secret" not in raised.value.message


async def test_a_directory_that_is_not_there_is_not_made(tmp_path):
    with pytest.raises(ArchiveDenied, match="no such directory"):
        await open_store(f"file://{tmp_path}/nothing", RealClock(), SystemRng())
    assert not (tmp_path / "nothing").exists()


async def test_an_endpoint_elsewhere_needs_tls_unless_it_is_allowed_to_go_without_and_nobody_goes_without_keys(
    monkeypatch,
):
    for variable in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "PROFILE"):
        monkeypatch.delenv(f"AWS_{variable}", raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://storage.example:9000")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")
    with pytest.raises(InvalidConfig, match="without TLS"):
        await open_store("s3://bucket/a", RealClock(), SystemRng())
    with pytest.raises(ArchiveDenied, match="AWS_ACCESS_KEY_ID"):
        await open_store("s3://bucket/a", RealClock(), SystemRng(), allow_http=True)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    store = await open_store("s3://bucket/a", RealClock(), SystemRng(), allow_http=True)
    assert store.url == "s3://bucket/a"
    await store.close()


def test_the_keys_of_archives_are_keys():
    assert is_key(object_key("0b9b3a2e-8f57-4b38-9c58-0a53a30a3c77", [1]))
    assert is_key(object_key("0b9b3a2e-8f57-4b38-9c58-0a53a30a3c77", [1, 2]))
