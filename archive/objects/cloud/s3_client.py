"""Runs botocore on worker threads: for requests that obstore lacks, and for credentials.

Multipart uploads need five requests, of which obstore offers none separately (see ``obstore_driver.py``). Signing them
ourselves would also need the chain of credentials: environment, profiles, instance and container roles, renewed tokens.
botocore has all of that, so the extra ``s3`` includes it, and obstore gets its keys from there: both always use the
same endpoint and the same identity.
"""

from __future__ import annotations

import asyncio
import importlib
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from tallybook.core.errors import ArchiveDenied, InvalidConfig, TallybookError
from tallybook.runtime.extras import NeedsExtra
from tallybook.runtime.tasks import Workers

from ..credentials import S3Credentials
from ..error_mapping import failure, no_answer
from ..retries import MIN_BYTES_PER_SECOND
from .obstore_driver import REQUEST_SECONDS

if TYPE_CHECKING:
    from obstore.store import S3Credential

_DEFAULT_REGION: Final = "us-east-1"
_CONNECT_SECONDS: Final = 5
_NO_IDENTITY: Final = frozenset({
    "CredentialRetrievalError", "NoCredentialsError", "PartialCredentialsError", "ProfileNotFound", "SSOTokenLoadError",
    "TokenRetrievalError", "UnauthorizedSSOTokenError",
})  # fmt: skip


class S3Client:
    """A botocore client for one account and endpoint, from the environment or from given credentials.

    Args:
        connections: maximum concurrent requests.
        given: credentials used instead of the environment's.

    Raises:
        InvalidConfig: botocore is not installed, or does not understand the environment.
    """

    def __init__(self, workers: Workers, connections: int, given: S3Credentials | None = None) -> None:
        with NeedsExtra("s3://"):
            session_module = importlib.import_module("botocore.session")
            self._exceptions: Any = importlib.import_module("botocore.exceptions")
            config_module = importlib.import_module("botocore.config")
        self._workers = workers
        try:
            self._session: Any = session_module.get_session()
            if given is not None:
                self._session.set_credentials(given.access_key, given.secret_key, given.session_token or None)
            region = given.region if given is not None else ""
            self.region: str = region or self._session.get_config_variable("region") or _DEFAULT_REGION
            self._client: Any = self._session.create_client(
                "s3",
                region_name=self.region,
                endpoint_url=(given.endpoint if given is not None else "") or None,
                config=config_module.Config(
                    connect_timeout=_CONNECT_SECONDS,
                    read_timeout=REQUEST_SECONDS,
                    retries={"total_max_attempts": 1},
                    max_pool_connections=connections,
                    # Stores that imitate S3 do not support the newer checksums.
                    request_checksum_calculation="when_required",
                    response_checksum_validation="when_required",
                    s3={"addressing_style": "path"},
                ),
            )
        except (self._exceptions.BotoCoreError, ValueError) as error:
            raise InvalidConfig(f"S3 cannot be set up from the environment: {type(error).__name__}") from error
        self.endpoint: str = self._client.meta.endpoint_url

    async def call(self, operation: str, what: str, *, size: int = 0, changes: bool = True, **parameters: Any) -> Any:
        """Send one request.

        Args:
            operation: method of the botocore client.
            what: store, object and operation, for messages.
            size: bytes of the request.
            changes: whether the request may change the store: without an answer its outcome is unknown.

        Raises:
            TallybookError: see ``error_mapping.py``. ``ObjectMissing`` also for an upload that does not exist.
        """
        try:
            async with asyncio.timeout(REQUEST_SECONDS + size / MIN_BYTES_PER_SECOND):
                return await self._workers.run(getattr(self._client, operation), **parameters)
        except TimeoutError:
            raise no_answer(what, "no answer in time", changes=changes) from None
        except (self._exceptions.ClientError, self._exceptions.BotoCoreError) as error:
            # Not chained: S3's answer for a wrong signature contains the key id.
            raise self._translated(what, error, changes=changes) from None

    async def credentials(self) -> S3Credential:
        """Credentials for obstore.

        Raises:
            ArchiveDenied: there are none, or they are incomplete.
            ArchiveUnavailable: the source of credentials does not answer.
        """
        try:
            found, expires_at = await self._workers.run(self._credentials)
        except self._exceptions.BotoCoreError as error:
            raise self._translated("S3", error, changes=False) from None
        if found is None:
            raise ArchiveDenied(
                "no AWS credentials were found: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or name a profile"
            )
        return {
            "access_key_id": found.access_key,
            "secret_access_key": found.secret_key,
            "token": found.token,
            "expires_at": expires_at,
        }

    async def close(self) -> None:
        """Release connections."""
        self._client.close()
        await self._workers.close()

    def _credentials(self) -> tuple[Any, datetime | None]:
        known = self._session.get_credentials()
        if known is None:
            return None, None
        # Frozen first: this renews credentials that expire soon.
        return known.get_frozen_credentials(), getattr(known, "_expiry_time", None)

    def _translated(self, what: str, error: Any, *, changes: bool) -> TallybookError:
        if isinstance(error, self._exceptions.ClientError):
            status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode")
            return failure(what, status, str(error.response.get("Error", {}).get("Code", ""))[:64], changes=changes)
        if type(error).__name__ in _NO_IDENTITY:
            return ArchiveDenied(f"{what}: no AWS credentials ({type(error).__name__})")
        return no_answer(what, type(error).__name__, changes=changes)
