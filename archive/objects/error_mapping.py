"""Maps answers of object stores, by HTTP status and error code, to our errors.

Messages contain store, object, status and code, and nothing else of the answer: S3's answer for a wrong signature
repeats the key id and the signed text.
"""

from __future__ import annotations

from typing import Final

from tallybook.core.errors import ArchiveBusy, ArchiveDenied, ArchiveUnavailable, ObjectMissing, Outcome, TallybookError

_DENIED: Final = frozenset({
    "AccessDenied", "AccountIsDisabled", "AccountProblem", "AllAccessDisabled", "AuthorizationHeaderMalformed",
    "ContainerBeingDeleted", "ContainerDisabled", "ContainerNotFound", "ExpiredToken", "InvalidAccessKeyId",
    "InvalidBucketName", "InvalidToken", "NoSuchBucket", "PermanentRedirect", "RequestTimeTooSkewed",
    "SignatureDoesNotMatch", "UserProjectMissing",
})  # fmt: skip
"""Permanent errors: an administrator must change a policy, a key, a region or a clock."""

_IN_WORDS: Final = {
    "AccessDenied": "these keys do not permit the request",
    "AuthenticationFailed": "the key or token is wrong, or the clock of this host, see AZURE_STORAGE_ACCOUNT_KEY",
    "AuthorizationFailure": "these keys do not permit the request, or the key is wrong, see AZURE_STORAGE_ACCOUNT_KEY",
    "AuthorizationHeaderMalformed": "the bucket is in another region, see AWS_REGION",
    "ContainerBeingDeleted": "the container is being deleted",
    "ContainerNotFound": "there is no such container",
    "ExpiredToken": "the session of these keys has expired",
    "InvalidObjectState": "its storage class (Glacier) has to be restored before it can be read",
    "InvalidAccessKeyId": "the store does not know this key, see AWS_ACCESS_KEY_ID",
    "NoSuchBucket": "there is no such bucket",
    "PermanentRedirect": "the bucket is in another region, see AWS_REGION",
    "RequestTimeTooSkewed": "the clock of this host is wrong",
    "SignatureDoesNotMatch": "the secret does not belong to the key, see AWS_SECRET_ACCESS_KEY",
}
"""Explanations of error codes."""

_NO_UPLOAD: Final = "InvalidBlockList"
"""Azure's code for missing parts of an upload."""

_BUSY: Final = frozenset(
    {"RequestLimitExceeded", "ServerBusy", "SlowDown", "Throttling", "ThrottlingException", "TooManyRequests"}
)


def failure(what: str, status: int | None, code: str = "", *, changes: bool) -> TallybookError:
    """The error for an unsuccessful answer.

    Args:
        what: store, object and operation.
        status: HTTP status; ``None``: no answer.
        code: the store's error code; empty: none.
        changes: whether the request changes the store: without a clear answer it may have.
    """
    said = " ".join(part for part in (f"HTTP {status}" if status else "no answer", code) if part)
    message = f"{what}: {said}"
    if status in {401, 403} or code in _DENIED:
        words = _IN_WORDS.get(code, "" if code else "keys are missing, or do not permit the request")
        return ArchiveDenied(f"{message}: {words}" if words else message)
    if status == 404 or code == _NO_UPLOAD:
        return ObjectMissing(message)
    if code in _BUSY or status == 429:
        return ArchiveBusy(message)
    unknown = changes and (status is None or status >= 500)
    outcome = Outcome.UNKNOWN if unknown else Outcome.NOT_DONE
    # A 503 without a code may come from a proxy, which does not know the outcome of the request.
    return ArchiveBusy(message, outcome=outcome) if status == 503 else ArchiveUnavailable(message, outcome=outcome)


def no_identity(what: str, status: int | None) -> TallybookError:
    """The error for a request that was not sent because no token was available.

    Args:
        status: HTTP status of the token service; ``None``: no answer.
    """
    if status is None or status == 429 or status >= 500:
        return ArchiveUnavailable(f"{what}: the token service does not answer; are credentials set?")
    return ArchiveDenied(f"{what}: no credentials: none are set, and the token service answers HTTP {status}")


def no_answer(what: str, why: str, *, changes: bool) -> ArchiveUnavailable:
    """The error for a request without an answer in time."""
    return ArchiveUnavailable(f"{what}: {why}", outcome=Outcome.UNKNOWN if changes else Outcome.NOT_DONE)
