"""Answers of S3, scripted on a loopback server."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tallybook.archive.objects.credentials import S3Credentials
from tallybook.archive.objects.open import open_store
from tallybook.archive.objects.port import ObjectStore
from tallybook.archive.objects.retries import RetrySettings
from tallybook.core.errors import ArchiveBusy, ArchiveDenied, ArchiveUnavailable, InvalidConfig, ObjectMissing, Outcome
from tallybook.runtime.clock import RealClock
from tallybook.runtime.rng import SystemRng

KEY = "ledgers/1"
SECRET = "this-is-the-secret-key"
ACCESS = "AKIATHISISTHEKEYID"
Answer = bytes
IMPATIENT = RetrySettings(first_pause=1000.0, slowest_rate=1000.0)


def answer(status: int, code: str = "", *, body: bytes = b"", headers: str = "") -> Answer:
    """An HTTP answer; S3's own way of saying ``code`` in its body."""
    if code:
        body = (
            f"<Error><Code>{code}</Code><Message>m</Message><AWSAccessKeyId>{ACCESS}</AWSAccessKeyId></Error>".encode()
        )
    return f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\n{headers}\r\n".encode() + body


CUT_SHORT = b"HTTP/1.1 206 X\r\nContent-Length: 10\r\nContent-Range: bytes 0-9/100\r\n\r\n01234"
LOOKED = answer(
    200, headers="Content-Length: 100\r\nLast-Modified: Sat, 01 Aug 2026 10:00:00 GMT\r\nETag: x\r\n"
).replace(b"Content-Length: 0\r\n", b"")


@pytest.fixture
def play(answering, monkeypatch) -> Callable[..., object]:
    """``async with play(answers...) as (store, server)``."""

    @asynccontextmanager
    async def playing(*answers: Answer, patience: RetrySettings = IMPATIENT) -> AsyncIterator[tuple[ObjectStore, Any]]:
        async with answering(*answers) as server:
            for name, value in {
                "ENDPOINT_URL": server.endpoint, "ACCESS_KEY_ID": ACCESS, "SECRET_ACCESS_KEY": SECRET,
                "REGION": "us-east-1", "CONFIG_FILE": "/dev/null", "SHARED_CREDENTIALS_FILE": "/dev/null",
            }.items():  # fmt: skip
                monkeypatch.setenv(f"AWS_{name}", value)
            store = await open_store("s3://bucket/place", RealClock(), SystemRng(), patience)
            try:
                yield store.below, server
            finally:
                await store.close()

    return playing


async def written(store: ObjectStore) -> None:
    upload = store.upload(KEY)
    await upload.write(bytes(9 << 20))
    await upload.finish()


async def listed(store: ObjectStore) -> None:
    async for _ in store.list():
        pass


CALLS: dict[str, Callable[[ObjectStore], Awaitable[object]]] = {
    "read": lambda store: store.read(KEY, 0, 10),
    "list": listed,
    "put": lambda store: store.put(KEY, b"x"),
    "delete": lambda store: store.delete(KEY),
    "uploads": lambda store: store.unfinished_uploads(),
}
CHANGES = {"put", "delete"}


@pytest.mark.parametrize(
    ("status", "code", "error"),
    [
        (403, "AccessDenied", ArchiveDenied),
        (403, "SignatureDoesNotMatch", ArchiveDenied),
        (401, "", ArchiveDenied),
        (404, "NoSuchBucket", ArchiveDenied),
        (400, "ExpiredToken", ArchiveDenied),
        (503, "SlowDown", ArchiveBusy),
        (429, "", ArchiveBusy),
        (503, "", ArchiveBusy),
        (500, "InternalError", ArchiveUnavailable),
        (502, "", ArchiveUnavailable),
        (400, "RequestTimeout", ArchiveUnavailable),
    ],
)
async def test_every_call_distinguishes_refusals_from_overload_and_failures(play, status, code, error):
    async with play(*[answer(status, code)] * len(CALLS)) as (store, server):
        for name, call in CALLS.items():
            with pytest.raises(ArchiveUnavailable if error is not ArchiveDenied else ArchiveDenied) as raised:
                await call(store)
            # A 503 without a code may come from a proxy: the change may have been made.
            unknown = name in CHANGES and status >= 500 and code != "SlowDown"
            assert raised.value.outcome is (Outcome.UNKNOWN if unknown else Outcome.NOT_DONE), name
            assert isinstance(raised.value, error) or unknown, name
            for secret in (SECRET, ACCESS, "Message"):
                assert secret not in raised.value.message
            assert raised.value.__cause__ is None or ACCESS not in str(raised.value.__cause__)
        assert len(server.requests) == len(CALLS), "nothing was asked twice"


async def test_given_credentials_take_the_place_of_those_of_the_environment(answering, monkeypatch):
    for name, value in {
        "ACCESS_KEY_ID": ACCESS,
        "SECRET_ACCESS_KEY": SECRET,
        "SESSION_TOKEN": "of-the-process",
    }.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    async with answering(answer(206, body=b"0", headers="Content-Range: bytes 0-0/1\r\n"), answer(200)) as server:
        given = S3Credentials("AKIAOFTHEQUERY", "another-secret", region="eu-west-3", endpoint=server.endpoint)
        store = await open_store("s3://bucket/place", RealClock(), SystemRng(), IMPATIENT, credentials=given)
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
        await open_store("az://container/place", RealClock(), SystemRng(), credentials=given)


async def test_no_answer_at_all_is_trouble_whose_outcome_is_unknown_for_changes(play):
    async with play(*[b""] * len(CALLS)) as (store, _):
        for name, call in CALLS.items():
            with pytest.raises(ArchiveUnavailable) as raised:
                await call(store)
            assert raised.value.outcome is (Outcome.UNKNOWN if name in CHANGES else Outcome.NOT_DONE), name


async def test_a_body_that_is_cut_is_trouble_and_no_damage(play):
    async with play(CUT_SHORT) as (store, _):
        with pytest.raises(ArchiveUnavailable):
            await store.read(KEY, 0, 10)


async def test_fewer_bytes_than_were_asked_for_are_no_damage_if_the_object_is_longer(play):
    short = answer(206, body=b"01234", headers="Content-Range: bytes 0-4/5\r\n")
    async with play(short, LOOKED) as (store, server):
        with pytest.raises(ArchiveUnavailable):
            await store.read(KEY, 0, 10)
        assert [request.split()[0] for request in server.requests] == ["GET", "HEAD"]


@pytest.mark.parametrize("body", [b"01234", bytes(10), bytes(100)])
async def test_a_server_that_ignores_ranges_is_an_error_with_any_body(play, body):
    """A 200 has the whole object, or says so: what it holds of the range is not guessed, be it as long as the range."""
    async with play(answer(200, body=body)) as (store, _):
        with pytest.raises(ArchiveUnavailable):
            await store.read(KEY, 0, 10)


async def test_no_write_is_conditional(play):
    """Some stores accept the header and ignore it: nothing may rely on it, so the store does not send it."""
    async with play(answer(200), BEGUN, SENT, SENT, COMPLETED) as (store, server):
        await store.put(KEY, b"x")
        await written(store)
        assert len(server.heads) == 5
        assert not [head for head in server.heads if "if-" in head.lower()]


async def test_a_refused_range_is_no_damage_if_the_object_is_longer(play):
    async with play(answer(416, "InvalidRange"), LOOKED) as (store, server):
        with pytest.raises(ArchiveUnavailable):
            await store.read(KEY, 0, 10)
        assert [request.split()[0] for request in server.requests] == ["GET", "HEAD"]


async def test_a_missing_bucket_is_not_taken_for_a_missing_object(play):
    async with play(answer(404), answer(404, "NoSuchBucket"), answer(404), answer(404, "NoSuchKey")) as (store, _):
        with pytest.raises(ArchiveDenied):
            await store.info(KEY)
        with pytest.raises(ObjectMissing):
            await store.info(KEY)


BEGUN = answer(200, body=b"<InitiateMultipartUploadResult><UploadId>u</UploadId></InitiateMultipartUploadResult>")
SENT = answer(200, headers='ETag: "e"\r\n')
COMPLETED = answer(200, body=b"<CompleteMultipartUploadResult><ETag>e</ETag></CompleteMultipartUploadResult>")
PATIENT = RetrySettings(first_pause=0.01)


async def test_a_part_that_was_not_answered_is_sent_again(play):
    # Two parts, one of which is sent twice.
    async with play(BEGUN, answer(500), b"", SENT, SENT, COMPLETED, patience=PATIENT) as (store, server):
        await written(store)
        assert len([request for request in server.requests if "partNumber" in request]) == 4
        assert store.retries.stats["part_failed"] == 2


async def test_an_upload_of_one_part_that_was_not_taken_is_sent_again(play):
    quick = RetrySettings(first_pause=0.01, slowest_rate=1000.0)
    async with play(answer(503, "SlowDown"), answer(500), b"", answer(200), patience=quick) as (store, server):
        upload = store.upload(KEY)
        await upload.write(b"small")
        await upload.finish()
        assert [request.split()[0] for request in server.requests] == ["PUT"] * 4
        assert (store.retries.stats["put_busy"], store.retries.stats["put_failed"]) == (1, 2)


async def test_a_completion_that_went_through_unnoticed_is_success(play):
    size = 9 << 20
    there = answer(200).replace(b"Content-Length: 0", f"Content-Length: {size}".encode())
    gone = answer(404, "NoSuchUpload")
    async with play(BEGUN, SENT, SENT, answer(500), gone, there, patience=PATIENT) as (store, _):
        await written(store)


async def test_an_error_in_a_completion_that_began_well_is_an_error(play):
    error = answer(200, "InternalError")
    async with play(BEGUN, SENT, SENT, error, COMPLETED, patience=PATIENT) as (store, _):
        await written(store)
        assert store.retries.stats["complete_failed"] == 1


async def test_an_upload_that_is_gone_says_so(play):
    async with play(BEGUN, SENT, SENT, answer(404, "NoSuchUpload"), answer(404), patience=PATIENT) as (store, _):
        with pytest.raises(ArchiveUnavailable, match="another client"):
            await written(store)


async def test_unfinished_uploads_are_listed_to_the_last_page(play):
    def page(number: int, more: str) -> Answer:
        return answer(
            200,
            body=f"<ListMultipartUploadsResult><IsTruncated>{more}</IsTruncated><NextKeyMarker>k{number}</NextKeyMarker>"
            f"<NextUploadIdMarker>u{number}</NextUploadIdMarker><Upload><Key>place/a{number}</Key>"
            f"<UploadId>u{number}</UploadId><Initiated>2026-08-01T10:00:00Z</Initiated></Upload>"
            f"</ListMultipartUploadsResult>".encode(),
        )

    async with play(page(1, "true"), page(2, "false")) as (store, server):
        found = await store.unfinished_uploads()
        assert [(upload.key, upload.upload_id) for upload in found] == [("a1", "u1"), ("a2", "u2")]
        assert {upload.began_at_ms for upload in found} == {1_785_578_400_000}
        assert "key-marker=k1" in server.requests[1]
        assert "upload-id-marker=u1" in server.requests[1]
