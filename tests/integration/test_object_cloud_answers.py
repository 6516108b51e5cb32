"""Answers of Google and Azure stores, scripted on a loopback server."""

import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tallybook.archive.objects.credentials import AzureCredentials
from tallybook.archive.objects.open import open_store
from tallybook.archive.objects.port import ObjectStore, Upload
from tallybook.archive.objects.retries import RetrySettings
from tallybook.core.errors import ArchiveBusy, ArchiveDenied, ArchiveUnavailable, ObjectMissing, Outcome
from tallybook.runtime.clock import RealClock
from tallybook.runtime.rng import SystemRng

KEY = "ledgers/1"
SECRET = "dGhlLXNlY3JldA=="
IMPATIENT = RetrySettings(first_pause=1000.0, slowest_rate=1000.0)
QUICK = RetrySettings(first_pause=0.01, slowest_rate=1000.0)
LARGE = 17 << 20
"""Two parts of an upload."""
URLS = ["gs://bucket/place", "az://container/place"]


def answer(status: int, code: str = "", *, body: bytes = b"", headers: str = "") -> bytes:
    """An HTTP answer, with an error code in its body as both clouds put it."""
    if code:
        body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{SECRET}</Message></Error>".encode()
    return f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\n{headers}\r\n".encode() + body


LOOKED = "Last-Modified: Sat, 01 Aug 2026 10:00:00 GMT\r\nETag: x\r\n"
BEGUN = answer(200, body=b"<InitiateMultipartUploadResult><UploadId>u</UploadId></InitiateMultipartUploadResult>")
SENT = answer(200, headers='ETag: "e"\r\n')
COMPLETED = answer(200, body=b"<CompleteMultipartUploadResult><ETag>e</ETag></CompleteMultipartUploadResult>")
PUT = answer(201, headers='ETag: "e"\r\n')


def there(size: int) -> bytes:
    """The answer to a HEAD."""
    return f"HTTP/1.1 200 X\r\nContent-Length: {size}\r\n{LOOKED}\r\n".encode()


@pytest.fixture
def play(answering, monkeypatch) -> Callable[..., object]:
    """``async with play(url, answers...) as (store, server)``."""

    @asynccontextmanager
    async def playing(
        url: str, *answers: bytes, patience: RetrySettings = IMPATIENT
    ) -> AsyncIterator[tuple[ObjectStore, Any]]:
        async with answering(*answers) as server:
            monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.endpoint.removeprefix("http://"))
            monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", server.endpoint)
            monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
            monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", SECRET)
            store = await open_store(url, RealClock(), SystemRng(), patience)
            try:
                yield store.below, server
            finally:
                await store.close()

    return playing


@pytest.mark.parametrize(
    ("given", "signed", "unsigned"),
    [
        (AzureCredentials("theirs", secret_key="b3RoZXI="), "authorization: SharedKey theirs:", "sig="),
        (AzureCredentials("theirs", sas_token="?sv=2026&sig=x"), "sv=2026&sig=x", "authorization:"),
    ],
    ids=["key", "signature"],
)
async def test_given_credentials_take_the_place_of_those_of_the_environment(
    answering, monkeypatch, given, signed, unsigned
):
    async with answering(answer(206, body=b"0", headers=f"Content-Range: bytes 0-0/1\r\n{LOOKED}")) as server:
        monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", server.endpoint)
        monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
        monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", SECRET)
        store = await open_store("az://container/place", RealClock(), SystemRng(), IMPATIENT, credentials=given)
        try:
            await store.below.read(KEY, 0, 1)
        finally:
            await store.close()
    [request] = server.heads
    assert signed in request
    assert unsigned not in request


async def listed(store: ObjectStore) -> None:
    async for _ in store.list():
        pass


async def written_to(upload: Upload, size: int = LARGE) -> None:
    await upload.write(bytes(size))
    await upload.finish()


async def written(store: ObjectStore) -> None:
    await written_to(store.upload(KEY))


CALLS: dict[str, Callable[[ObjectStore], Awaitable[object]]] = {
    "read": lambda store: store.read(KEY, 0, 10),
    "list": listed,
    "put": lambda store: store.put(KEY, b"x"),
    "delete": lambda store: store.delete(KEY),
}
CHANGES = {"put", "delete"}


@pytest.mark.parametrize("url", URLS)
@pytest.mark.parametrize(
    ("status", "code", "error"),
    [
        (403, "AccessDenied", ArchiveDenied),
        (403, "AuthorizationFailure", ArchiveDenied),
        (403, "AuthenticationFailed", ArchiveDenied),
        (401, "", ArchiveDenied),
        (404, "NoSuchBucket", ArchiveDenied),
        (404, "ContainerNotFound", ArchiveDenied),
        (409, "ContainerBeingDeleted", ArchiveDenied),
        (429, "", ArchiveBusy),
        (503, "ServerBusy", ArchiveBusy),
        (503, "", ArchiveBusy),
        (500, "InternalError", ArchiveUnavailable),
        (502, "", ArchiveUnavailable),
    ],
)
async def test_every_call_distinguishes_refusals_from_overload_and_failures(play, url, status, code, error):
    async with play(url, *[answer(status, code)] * len(CALLS)) as (store, server):
        for name, call in CALLS.items():
            with pytest.raises((error, ArchiveUnavailable)) as raised:
                await call(store)
            # A 503 without a code may come from a proxy: the change may have been made.
            unknown = name in CHANGES and status >= 500 and code != "ServerBusy"
            assert raised.value.outcome is (Outcome.UNKNOWN if unknown else Outcome.NOT_DONE), name
            assert isinstance(raised.value, error) or unknown, name
            assert SECRET not in raised.value.message
            assert raised.value.__cause__ is None or SECRET not in str(raised.value.__cause__)
        assert len(server.requests) == len(CALLS), "nothing was asked twice"


@pytest.mark.parametrize("url", URLS)
async def test_no_answer_at_all_is_trouble_whose_outcome_is_unknown_for_changes(play, url):
    async with play(url, *[b""] * len(CALLS)) as (store, _):
        for name, call in CALLS.items():
            with pytest.raises(ArchiveUnavailable) as raised:
                await call(store)
            assert raised.value.outcome is (Outcome.UNKNOWN if name in CHANGES else Outcome.NOT_DONE), name


@pytest.mark.parametrize("url", URLS)
async def test_a_short_body_is_no_damage_if_the_object_is_longer(play, url):
    cut = b"HTTP/1.1 206 X\r\nContent-Length: 10\r\nContent-Range: bytes 0-9/100\r\n" + LOOKED.encode() + b"\r\n01234"
    short = answer(206, body=b"01234", headers=f"Content-Range: bytes 0-4/5\r\n{LOOKED}")
    async with play(url, cut, short, there(100), answer(416, "InvalidRange"), there(100)) as (store, server):
        for _ in range(3):
            with pytest.raises(ArchiveUnavailable):
                await store.read(KEY, 0, 10)
        assert [request.split()[0] for request in server.requests] == ["GET", "GET", "HEAD", "GET", "HEAD"]


@pytest.mark.parametrize("url", URLS)
@pytest.mark.parametrize("body", [b"01234", bytes(10), bytes(100)])
async def test_a_server_that_ignores_ranges_is_an_error_with_any_body(play, url, body):
    async with play(url, answer(200, body=body, headers=LOOKED)) as (store, _):
        with pytest.raises(ArchiveUnavailable):
            await store.read(KEY, 0, 10)


async def test_a_ledger_deleted_before_is_distinguished_from_one_that_cannot_be_deleted_without_a_bucket(play):
    missing = answer(404), answer(404, "NoSuchKey"), answer(404), answer(404, "NoSuchBucket")
    async with play(URLS[0], *missing) as (store, server):
        await store.delete(KEY)
        with pytest.raises(ArchiveDenied):
            await store.delete(KEY)
        assert [request.split()[0] for request in server.requests] == ["DELETE", "GET"] * 2


async def test_a_token_server_without_a_token_is_not_taken_for_a_missing_object(play, answering, monkeypatch):
    async with play("az://container/place") as (store, server), answering(answer(404), answer(500)) as tokens:
        await store.close()
        monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_KEY")
        monkeypatch.setenv("AZURE_MSI_ENDPOINT", f"{tokens.endpoint}/token")
        anonymous = await open_store("az://container/place", RealClock(), SystemRng(), IMPATIENT)
        with pytest.raises(ArchiveDenied, match="no credentials"):
            await anonymous.read(KEY, 0, 1)
        with pytest.raises(ArchiveUnavailable, match="credentials"):
            await anonymous.put(KEY, b"x")
        assert not server.requests
        await anonymous.close()


@pytest.mark.parametrize("url", URLS)
async def test_no_write_is_conditional(play, url):
    large = [BEGUN, SENT, SENT, COMPLETED] if url.startswith("gs") else [PUT] * 3
    async with play(url, PUT, *large) as (store, server):
        await store.put(KEY, b"x")
        await written(store)
        assert len(server.heads) == len(large) + 1
        assert not [head for head in server.heads if re.search(r"(?i)if-|generation", head)]


async def test_a_part_that_was_not_answered_is_sent_again(play):
    async with play(URLS[0], BEGUN, answer(500), b"", SENT, SENT, COMPLETED) as (store, server):
        await written(store)
        assert len([request for request in server.requests if "partNumber" in request]) == 4


async def test_an_upload_of_one_part_that_was_not_taken_is_sent_again(play):
    async with play(URLS[0], answer(503), answer(500), b"", PUT, patience=QUICK) as (store, server):
        upload = store.upload(KEY)
        await upload.write(b"small")
        await upload.finish()
        assert [request.split()[0] for request in server.requests] == ["PUT"] * 4


@pytest.mark.parametrize(
    ("url", "answers"),
    [
        (URLS[0], [BEGUN, SENT, SENT, answer(404, "NoSuchUpload"), answer(404, "NoSuchUpload")]),
        (URLS[1], [PUT, PUT, answer(400, "InvalidBlockList")]),
    ],
)
async def test_a_completion_that_went_through_unnoticed_is_success_and_one_that_did_not_is_none(play, url, answers):
    """To Google, obstore also sends that the upload be taken back."""
    end = 3 if url.startswith("gs") else 2
    async with play(url, *answers[:end], b"", *answers[end:], there(LARGE)) as (store, _):
        await written(store)
    for size in (there(LARGE - 1), answer(404)):
        async with play(url, *answers, size) as (store, _):
            with pytest.raises(ArchiveUnavailable, match="another client"):
                await written(store)


async def test_an_upload_whose_part_is_refused_fails_and_leaves_no_part(play):
    refused = answer(403, "AccessDenied")
    async with play(URLS[0], BEGUN, refused, answer(204)) as (store, server):
        upload = store.upload(KEY)
        with pytest.raises(ArchiveDenied):
            await written_to(upload, 9 << 20)
        await upload.abort()
        assert [request.split()[0] for request in server.requests] == ["POST", "PUT", "DELETE"]


async def test_an_upload_that_cannot_begin_says_why(play):
    async with play(URLS[0], answer(404, "NoSuchBucket")) as (store, _):
        with pytest.raises(ArchiveDenied, match="no such bucket"):
            await written(store)


async def test_a_put_where_nothing_can_be_is_no_missing_object(play):
    async with play(URLS[0], answer(404)) as (store, _):
        with pytest.raises(ArchiveUnavailable) as raised:
            await store.put(KEY, b"x")
        assert not isinstance(raised.value, ObjectMissing)
