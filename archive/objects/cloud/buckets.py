"""Opens buckets of Google Cloud Storage and containers of Azure: credentials and endpoints.

Both are driven by obstore, which finds credentials like the tools of these clouds: in variables, in files named by
variables, where ``gcloud`` stores them, and in the machine's metadata service. An endpoint from the environment is
checked here: one without TLS is accepted only on this host.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Final, TypedDict
from urllib.parse import urlsplit

from obstore.exceptions import BaseError
from obstore.store import AzureStore, GCSStore
from obstore.store import ObjectStore as Source

from tallybook.core.errors import InvalidConfig
from tallybook.runtime.settings import variable
from tallybook.runtime.tasks import Tasks

from ..credentials import AzureCredentials
from ..retries import MIN_BYTES_PER_SECOND, RetryPolicy
from .obstore_driver import REQUEST_SECONDS, ObstoreStore
from .streamed_writes import PART_BYTES, StreamedWrites

if TYPE_CHECKING:
    from obstore.store import AzureConfig, AzureCredential, ClientConfig, GCSCredential, RetryConfig

GCS_PARTS: Final = 10_000
AZURE_PARTS: Final = 50_000
AZURITE: Final = "http://127.0.0.1:10000"

LOOPBACK: Final = re.compile(r"localhost|127(?:\.[0-9]{1,3}){3}|::1")
FOREVER: Final = timedelta(days=1)
CONNECT: Final = timedelta(seconds=5)
ONCE: Final[RetryConfig] = {"max_retries": 0, "retry_timeout": timedelta(seconds=REQUEST_SECONDS)}
"""Each request has a deadline of ours, and is retried by ``retries.py``."""

_PART_SECONDS: Final = REQUEST_SECONDS + PART_BYTES / MIN_BYTES_PER_SECOND
_AGAIN: Final[RetryConfig] = {
    "max_retries": 10,
    "backoff": {"init_backoff": timedelta(seconds=0.1), "max_backoff": timedelta(seconds=10), "base": 2},
    "retry_timeout": timedelta(seconds=60 + _PART_SECONDS),
}

_WRONG: Final = {
    "Unable to open service account file": "the file of the service account cannot be read",
    "Unable to decode service account": "the service account, in a variable or a file, is invalid",
    "Account must be specified": "set AZURE_STORAGE_ACCOUNT_NAME",
    "Invalid Access Key": "AZURE_STORAGE_ACCOUNT_KEY is not a valid key",
}
"""obstore's messages, which may repeat their input, and ours."""


class _Asked(TypedDict):
    """obstore's options."""

    client_options: ClientConfig
    retry_config: RetryConfig


def check_endpoint(url: str, endpoint: str, *, allow_http: bool) -> bool:
    """Whether ``endpoint`` goes without TLS.

    Raises:
        InvalidConfig: it does, and is not on this host; or it is not an endpoint.
    """
    try:
        found = urlsplit(endpoint)
        host = found.hostname or ""
    except ValueError:
        raise InvalidConfig(f"{url}: the endpoint is not a URL") from None
    if found.scheme not in {"http", "https"} or not host or found.username or found.password:
        raise InvalidConfig(f"{url}: an endpoint is http:// or https:// and a host, without user and password")
    plain = found.scheme == "http"
    if plain and not allow_http and not LOOPBACK.fullmatch(host):
        raise InvalidConfig(f"{url}: the endpoint {host} is on another host and does not use TLS")
    return plain


def open_gcs(bucket: str, prefix: str, retries: RetryPolicy, *, allow_http: bool) -> ObstoreStore:
    """Open a bucket of Google Cloud Storage. STORAGE_EMULATOR_HOST names an emulator, used without credentials.

    Raises:
        InvalidConfig: the environment is invalid.
    """
    url = f"gs://{bucket}/{prefix}".rstrip("/")
    emulator = variable("STORAGE_EMULATOR_HOST")
    if emulator and "://" not in emulator:
        emulator = f"http://{emulator}"
    endpoint = emulator or variable("GOOGLE_BASE_URL")
    plain = bool(endpoint) and check_endpoint(url, endpoint, allow_http=allow_http)

    def store(asked: _Asked) -> GCSStore:
        return GCSStore(
            bucket,
            prefix=prefix or None,
            config={"base_url": endpoint.rstrip("/")} if endpoint else {},
            credential_provider=_emulator_token if emulator else None,
            **asked,
        )

    return _opened(store, url, retries, plain=plain, max_parts=GCS_PARTS, in_order=True)


def open_azure(
    container: str, prefix: str, retries: RetryPolicy, given: AzureCredentials | None = None, *, allow_http: bool
) -> ObstoreStore:
    """Open a container of Azure Blob Storage, with the account of the environment or the given credentials.

    Raises:
        InvalidConfig: the environment is invalid.
    """
    url = f"az://{container}/{prefix}".rstrip("/")
    endpoint = variable("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT")
    if variable("AZURE_STORAGE_USE_EMULATOR").lower() in {"1", "true", "yes", "on"}:
        asked_at = variable("AZURITE_BLOB_STORAGE_URL") or AZURITE
    else:
        asked_at = endpoint
    plain = bool(asked_at) and check_endpoint(url, asked_at, allow_http=allow_http)

    def store(asked: _Asked) -> AzureStore:
        config: AzureConfig = {"endpoint": endpoint} if endpoint else {}
        if given is not None:
            config["account_name"] = given.account
        # A provider, since obstore would also take a key from the environment, and prefer it to a signature.
        provider = None if given is None else partial(_azure_credential, given)
        return AzureStore(container, prefix=prefix or None, config=config, credential_provider=provider, **asked)

    # Accounts with hierarchical namespaces list in another order.
    return _opened(store, url, retries, plain=plain, max_parts=AZURE_PARTS, in_order=False)


def _opened(
    store: Callable[[_Asked], Source], url: str, retries: RetryPolicy, *, plain: bool, max_parts: int, in_order: bool
) -> ObstoreStore:
    try:
        source = store(_asked(plain, FOREVER, ONCE))
        sender = store(_asked(plain, timedelta(seconds=_PART_SECONDS), _AGAIN))
    except BaseError as error:
        why = next((words for said, words in _WRONG.items() if said in str(error)), "see docs/operate/object-stores.md")
        raise InvalidConfig(f"{url}: the environment variables are wrong: {why}") from None
    # The failure of an upload task is reported to the writer of the upload.
    tasks = Tasks(url.partition(":")[0], lambda _name, _error: None)
    writes = StreamedWrites(source, sender, url, retries, tasks, max_parts=max_parts)
    return ObstoreStore(source, writes, url, in_order=in_order)


def _asked(plain: bool, timeout: timedelta, retries: RetryConfig) -> _Asked:
    return {
        "client_options": {"allow_http": plain, "timeout": timeout, "connect_timeout": CONNECT},
        "retry_config": retries,
    }


def _azure_credential(given: AzureCredentials) -> AzureCredential:
    if given.sas_token:
        return {"sas_token": given.sas_token.removeprefix("?"), "expires_at": None}
    return {"access_key": given.secret_key, "expires_at": None}


def _emulator_token() -> GCSCredential:
    """Emulators accept any token; without one, obstore would ask the metadata service."""
    return {"token": "emulator", "expires_at": None}
