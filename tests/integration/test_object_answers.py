"""Answers of object stores, scripted on a loopback server: of S3, Google and Azure alike, and of each by itself."""

import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tallybook.archive.objects.credentials import AzureCredentials, S3Credentials
from tallybook.archive.objects.open import open_store
from tallybook.archive.objects.port import ObjectStore, Upload
from tallybook.archive.objects.retries import RetrySettings
from tallybook.core.errors import ArchiveBusy, ArchiveDenied, ArchiveUnavailable, InvalidConfig, ObjectMissing, Outcome
from tallybook.runtime.clock import RealClock
from tallybook.runtime.rng import SystemRng

KEY = "ledgers/1"
SECRET = "dGhlLXNlY3JldA=="
ACCESS = "AKIATHISISTHEKEYID"
S3, GOOGLE, AZURE = "s3://bucket/place", "gs://bucket/place", "az://container/place"
URLS = (S3, GOOGLE, AZURE)
IMPATIENT = RetrySettings(first_pause=1000.0, slowest_rate=1000.0)
QUICK = RetrySettings(first_pause=0.01, slowest_rate=1000.0)
HALF, LARGE = 9 << 20, 17 << 20
"""Sizes of uploads in two parts; the smaller one is enough for S3."""


def answer(status: int, code: str = "", *, body: bytes = b"", headers: str = "") -> bytes:
    """An HTTP answer, with an error code in its body as the stores put it."""
    if code:
        body = (
            f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{SECRET}</Message>"
            f"<AWSAccessKeyId>{ACCESS}</AWSAccessKeyId></Error>"
        ).encode()
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
            for name, value in {
                "AWS_ENDPOINT_URL": server.endpoint, "AWS_ACCESS_KEY_ID": ACCESS, "AWS_SECRET_ACCESS_KEY": SECRET,
                "AWS_REGION": "us-east-1", "AWS_CONFIG_FILE": "/dev/null", "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
                "STORAGE_EMULATOR_HOST": server.endpoint.removeprefix("http://"),
                "AZURE_STORAGE_ENDPOINT": server.endpoint, "AZURE_STORAGE_ACCOUNT_NAME": "account",
                "AZURE_STORAGE_ACCOUNT_KEY": SECRET,
            }.items():  # fmt: skip
                monkeypatch.setenv(name, value)
            store = await open_store(url, RealClock(), SystemRng(), patience)
            try:
                yield store.below, server
            finally:
                await store.close()

    return playing


async def listed(store: ObjectStore) -> None:
    async for _ in store.list():
        pass


async def written_to(upload: Upload, size: int = LARGE) -> None:
    await upload.write(bytes(size))
    await upload.finish()


async def written(store: ObjectStore, size: int = LARGE) -> None:
    await written_to(store.upload(KEY), size)


CALLS: dict[str, Callable[[ObjectStore], Awaitable[object]]] = {
    "read": lambda store: store.read(KEY, 0, 10),
    "list": listed,
    "put": lambda store: store.put(KEY, b"x"),
    "delete": lambda store: store.delete(KEY),
}
CHANGES = {"put", "delete"}
REFUSALS = [
    (403, "AccessDenied", ArchiveDenied),
    (401, "", ArchiveDenied),
    (404, "NoSuchBucket", ArchiveDenied),
    (429, "", ArchiveBusy),
    (503, "", ArchiveBusy),
    (500, "InternalError", ArchiveUnavailable),
    (502, "", ArchiveUnavailable),
]
OWN_REFUSALS = [
    (403, "SignatureDoesNotMatch", ArchiveDenied),
    (400, "ExpiredToken", ArchiveDenied),
    (503, "SlowDown", ArchiveBusy),
    (400, "RequestTimeout", ArchiveUnavailable),
]
OWN_REFUSALS_OF_CLOUDS = [
    (403, "AuthorizationFailure", ArchiveDenied),
    (403, "AuthenticationFailed", ArchiveDenied),
    (404, "ContainerNotFound", ArchiveDenied),
    (409, "ContainerBeingDeleted", ArchiveDenied),
    (503, "ServerBusy", ArchiveBusy),
]

# -- all of them -----------------------------------------------------------------------------------


def calls_of(url: str) -> dict[str, Callable[[ObjectStore], Awaitable[object]]]:
    return {**CALLS, "uploads": lambda store: store.unfinished_uploads()} if url == S3 else CALLS


@pytest.mark.parametrize(
    ("url", "status", "code", "error"),
    [
        *((url, *each) for url in URLS for each in REFUSALS),
        *((S3, *each) for each in OWN_REFUSALS),
        *((url, *each) for url in (GOOGLE, AZURE) for each in OWN_REFUSALS_OF_CLOUDS),
    ],
)
async def test_every_call_distinguishes_refusals_from_overload_and_failures(play, url, status, code, error):
    calls = calls_of(url)
    async with play(url, *[answer(status, code)] * len(calls)) as (store, server):
        for name, call in calls.items():
            with pytest.raises((error, ArchiveUnavailable)) as raised:
                await call(store)
            # A 503 without a code may come from a proxy: the change may have been made.
            unknown = name in CHANGES and status >= 500 and code not in {"SlowDown", "ServerBusy"}
            assert raised.value.outcome is (Outcome.UNKNOWN if unknown else Outcome.NOT_DONE), name
            assert isinstance(raised.value, error) or unknown, name
            assert "Message" not in raised.value.message
            for secret in (SECRET, ACCESS):
                assert secret not in raised.value.message
                assert raised.value.__cause__ is None or secret not in str(raised.value.__cause__)
        assert len(server.requests) == len(calls), "nothing was asked twice"


@pytest.mark.parametrize("url", URLS)
async def test_no_answer_at_all_is_trouble_whose_outcome_is_unknown_for_changes(play, url):
    calls = calls_of(url)
    async with play(url, *[b""] * len(calls)) as (store, _):
        for name, call in calls.items():
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
    """A 200 has the whole object, or says so: what it holds of the range is not guessed, be it as long as the range."""
    async with play(url, answer(200, body=body, headers=LOOKED)) as (store, _):
        with pytest.raises(ArchiveUnavailable):
            await store.read(KEY, 0, 10)


@pytest.mark.parametrize("url", URLS)
async def test_no_write_is_conditional(play, url):
    """Some stores accept the header and ignore it: nothing may rely on it, so the store does not send it."""
    large = [PUT] * 3 if url == AZURE else [BEGUN, SENT, SENT, COMPLETED]
    async with play(url, PUT, *large) as (store, server):
        await store.put(KEY, b"x")
        await written(store, HALF if url == S3 else LARGE)
        assert len(server.heads) == len(large) + 1
        assert not [head for head in server.heads if re.search(r"(?i)if-|generation", head)]


@pytest.mark.parametrize(("url", "code"), [(S3, "SlowDown"), (GOOGLE, "")])
async def test_an_upload_of_one_part_that_was_not_taken_is_sent_again(play, url, code):
    async with play(url, answer(503, code), answer(500), b"", PUT, patience=QUICK) as (store, server):
        await written_to(store.upload(KEY), 5)
        assert [request.split()[0] for request in server.requests] == ["PUT"] * 4
        if url == S3:
            assert (store.retries.stats["put_busy"], store.retries.stats["put_failed"]) == (1, 2)


# -- S3 --------------------------------------------------------------------------------------------


async def test_given_credentials_of_s3_take_the_place_of_those_of_the_environment(answering, monkeypatch):
    for name, value in {
        "ACCESS_KEY_ID": ACCESS,
        "SECRET_ACCESS_KEY": SECRET,
        "SESSION_TOKEN": "of-the-process",
    }.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    async with answering(answer(206, body=b"0", headers="Content-Range: bytes 0-0/1\r\n"), answer(200)) as server:
        given = S3Credentials("AKIAOFTHEQUERY", "another-secret", region="eu-west-3", endpoint=server.endpoint)
        store = await open_store(S3, RealClock(), SystemRng(), IMPATIENT, credentials=given)
        try:
            await store.below.read(KEY, 0, 1)
            await store.below.put(KEY, b"x")
        finally:
            await store.close()
    assert len(server.heads) == 2
    for request in server.heads:
        assert "Credential=AKIAOFTHEQUERY/" in request
        assert "eu-west-3/s3/aws4_request" in request
        assert ACCESS not in request
        assert "of-the-process" not in request


async def test_credentials_for_another_kind_of_store_are_refused():
    given = S3Credentials("AKIAOFTHEQUERY", "another-secret")
    with pytest.raises(InvalidConfig, match="credentials for S3 were given, but the archive is not there"):
        await open_store(AZURE, RealClock(), SystemRng(), credentials=given)


async def test_a_missing_bucket_is_not_taken_for_a_missing_object(play):
    async with play(S3, answer(404), answer(404, "NoSuchBucket"), answer(404), answer(404, "NoSuchKey")) as (store, _):
        with pytest.raises(ArchiveDenied):
            await store.info(KEY)
        with pytest.raises(ObjectMissing):
            await store.info(KEY)


async def test_a_part_that_was_not_answered_is_sent_again_and_counted(play):
    # Two parts, one of which is sent twice.
    async with play(S3, BEGUN, answer(500), b"", SENT, SENT, COMPLETED, patience=QUICK) as (
        store,
        server,
    ):
        await written(store, HALF)
        assert len([request for request in server.requests if "partNumber" in request]) == 4
        assert store.retries.stats["part_failed"] == 2


async def test_a_completion_that_went_through_unnoticed_is_success(play):
    gone = answer(404, "NoSuchUpload")
    async with play(S3, BEGUN, SENT, SENT, answer(500), gone, there(HALF), patience=QUICK) as (store, _):
        await written(store, HALF)


async def test_an_error_in_a_completion_that_began_well_is_an_error(play):
    error = answer(200, "InternalError")
    async with play(S3, BEGUN, SENT, SENT, error, COMPLETED, patience=QUICK) as (store, _):
        await written(store, HALF)
        assert store.retries.stats["complete_failed"] == 1


async def test_an_upload_that_is_gone_says_so(play):
    async with play(S3, BEGUN, SENT, SENT, answer(404, "NoSuchUpload"), answer(404), patience=QUICK) as (store, _):
        with pytest.raises(ArchiveUnavailable, match="another client"):
            await written(store, HALF)


async def test_unfinished_uploads_are_listed_to_the_last_page(play):
    def page(number: int, more: str) -> bytes:
        return answer(
            200,
            body=f"<ListMultipartUploadsResult><IsTruncated>{more}</IsTruncated><NextKeyMarker>k{number}</NextKeyMarker>"
            f"<NextUploadIdMarker>u{number}</NextUploadIdMarker><Upload><Key>place/a{number}</Key>"
            f"<UploadId>u{number}</UploadId><Initiated>2026-08-01T10:00:00Z</Initiated></Upload>"
            f"</ListMultipartUploadsResult>".encode(),
        )

    async with play(S3, page(1, "true"), page(2, "false")) as (store, server):
        found = await store.unfinished_uploads()
        assert [(upload.key, upload.upload_id) for upload in found] == [("a1", "u1"), ("a2", "u2")]
        assert {upload.began_at_ms for upload in found} == {1_785_578_400_000}
        assert "key-marker=k1" in server.requests[1]
        assert "upload-id-marker=u1" in server.requests[1]


# -- Google and Azure ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "signed", "unsigned"),
    [
        (AzureCredentials("theirs", secret_key="b3RoZXI="), "authorization: SharedKey theirs:", "sig="),
        (AzureCredentials("theirs", sas_token="?sv=2026&sig=x"), "sv=2026&sig=x", "authorization:"),
    ],
    ids=["key", "signature"],
)
async def test_given_credentials_of_azure_take_the_place_of_those_of_the_environment(
    answering, monkeypatch, given, signed, unsigned
):
    async with answering(answer(206, body=b"0", headers=f"Content-Range: bytes 0-0/1\r\n{LOOKED}")) as server:
        monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", server.endpoint)
        monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
        monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", SECRET)
        store = await open_store(AZURE, RealClock(), SystemRng(), IMPATIENT, credentials=given)
        try:
            await store.below.read(KEY, 0, 1)
        finally:
            await store.close()
    [request] = server.heads
    assert signed in request
    assert unsigned not in request


async def test_a_ledger_deleted_before_is_distinguished_from_one_that_cannot_be_deleted_without_a_bucket(play):
    missing = answer(404), answer(404, "NoSuchKey"), answer(404), answer(404, "NoSuchBucket")
    async with play(GOOGLE, *missing) as (store, server):
        await store.delete(KEY)
        with pytest.raises(ArchiveDenied):
            await store.delete(KEY)
        assert [request.split()[0] for request in server.requests] == ["DELETE", "GET"] * 2


async def test_a_token_server_without_a_token_is_not_taken_for_a_missing_object(play, answering, monkeypatch):
    async with play(AZURE) as (store, server), answering(answer(404), answer(500)) as tokens:
        await store.close()
        monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_KEY")
        monkeypatch.setenv("AZURE_MSI_ENDPOINT", f"{tokens.endpoint}/token")
        anonymous = await open_store(AZURE, RealClock(), SystemRng(), IMPATIENT)
        with pytest.raises(ArchiveDenied, match="no credentials"):
            await anonymous.read(KEY, 0, 1)
        with pytest.raises(ArchiveUnavailable, match="credentials"):
            await anonymous.put(KEY, b"x")
        assert not server.requests
        await anonymous.close()


async def test_a_part_that_was_not_answered_is_sent_again(play):
    async with play(GOOGLE, BEGUN, answer(500), b"", SENT, SENT, COMPLETED) as (store, server):
        await written(store)
        assert len([request for request in server.requests if "partNumber" in request]) == 4


@pytest.mark.parametrize(
    ("url", "answers"),
    [
        (GOOGLE, [BEGUN, SENT, SENT, answer(404, "NoSuchUpload"), answer(404, "NoSuchUpload")]),
        (AZURE, [PUT, PUT, answer(400, "InvalidBlockList")]),
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
    async with play(GOOGLE, BEGUN, refused, answer(204)) as (store, server):
        upload = store.upload(KEY)
        with pytest.raises(ArchiveDenied):
            await written_to(upload, HALF)
        await upload.abort()
        assert [request.split()[0] for request in server.requests] == ["POST", "PUT", "DELETE"]


async def test_an_upload_that_cannot_begin_says_why(play):
    async with play(GOOGLE, answer(404, "NoSuchBucket")) as (store, _):
        with pytest.raises(ArchiveDenied, match="no such bucket"):
            await written(store)


async def test_a_put_where_nothing_can_be_is_no_missing_object(play):
    async with play(GOOGLE, answer(404)) as (store, _):
        with pytest.raises(ArchiveUnavailable) as raised:
            await store.put(KEY, b"x")
        assert not isinstance(raised.value, ObjectMissing)
