"""What an answer of an object store means: from HTTP status and error code to one of our errors.

Messages name the store, the object, the status and the code, and nothing else of the answer: what S3 says of
a wrong signature repeats the key id and what was signed.
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
"""Time does not cure these: somebody has to change a policy, a key, a region or a clock."""

_IN_WORDS: Final = {
    "AccessDenied": "these keys may not do that",
    "AuthenticationFailed": "the key or token is wrong, or the clock of this host, see AZURE_STORAGE_ACCOUNT_KEY",
    "AuthorizationFailure": "these keys may not do that, or the key is wrong, see AZURE_STORAGE_ACCOUNT_KEY",
    "AuthorizationHeaderMalformed": "the bucket is in another region, see AWS_REGION",
    "ContainerBeingDeleted": "somebody is deleting the container",
    "ContainerNotFound": "there is no such container",
    "ExpiredToken": "the session that these keys are of has ended",
    "InvalidObjectState": "its storage class (Glacier) has to be restored before it can be read",
    "InvalidAccessKeyId": "the store does not know this key, see AWS_ACCESS_KEY_ID",
    "NoSuchBucket": "there is no such bucket",
    "PermanentRedirect": "the bucket is in another region, see AWS_REGION",
    "RequestTimeTooSkewed": "the clock of this host is wrong",
    "SignatureDoesNotMatch": "the secret is not that of the key, see AWS_SECRET_ACCESS_KEY",
}
"""For people who do not know the codes by heart."""

_NO_UPLOAD: Final = "InvalidBlockList"
"""Azure's way to say that there are no such parts (any more)."""

_BUSY: Final = frozenset(
    {"RequestLimitExceeded", "ServerBusy", "SlowDown", "Throttling", "ThrottlingException", "TooManyRequests"}
)


def failure(what: str, status: int | None, code: str = "", *, changes: bool) -> TallybookError:
    """The error for an answer that is no success.

    Args:
        what: the store, the object and what was done.
        status: of HTTP; ``None`` where no answer came.
        code: what the store calls it, empty if it does not say.
        changes: the request was to change something, so without a clear answer it may have.
    """
    said = " ".join(part for part in (f"HTTP {status}" if status else "no answer", code) if part)
    message = f"{what}: {said}"
    if status in {401, 403} or code in _DENIED:
        words = _IN_WORDS.get(code, "" if code else "keys are missing, or may not do that")
        return ArchiveDenied(f"{message}: {words}" if words else message)
    if status == 404 or code == _NO_UPLOAD:
        return ObjectMissing(message)
    if code in _BUSY or status == 429:
        return ArchiveBusy(message)
    unknown = changes and (status is None or status >= 500)
    outcome = Outcome.UNKNOWN if unknown else Outcome.NOT_DONE
    # A 503 without a code may come from a proxy, which does not know what became of the request.
    return ArchiveBusy(message, outcome=outcome) if status == 503 else ArchiveUnavailable(message, outcome=outcome)


def no_identity(what: str, status: int | None) -> TallybookError:
    """The error for a request that was never made, for nobody has given us a token to make it with.

    Args:
        status: of HTTP, of who gives tokens; ``None`` where no answer came.
    """
    if status is None or status == 429 or status >= 500:
        return ArchiveUnavailable(f"{what}: who gives out tokens does not answer; are credentials set?")
    return ArchiveDenied(f"{what}: no credentials: none are set, and who gives out tokens refuses with HTTP {status}")


def no_answer(what: str, why: str, *, changes: bool) -> ArchiveUnavailable:
    """The error for a request that was not answered, or not in time."""
    return ArchiveUnavailable(f"{what}: {why}", outcome=Outcome.UNKNOWN if changes else Outcome.NOT_DONE)
