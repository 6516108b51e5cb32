"""URLs of object stores: parsing, and opening the store that a URL names.

    s3://bucket                      a bucket; endpoint, region and keys come from the usual AWS_* variables, from
    s3://bucket/prefix/of/keys       profiles or from the machine's role, as for every other AWS tool
    gs://bucket/prefix               a bucket of Google Cloud Storage; the same with GOOGLE_*
    az://container/prefix            a container of Azure Blob Storage; AZURE_* also name the account
    file:///srv/archive              a directory of this host, or of a file system that all hosts mount
    file:///./archive                relative to the working directory; also ../
    memory:                          one store object alone, not persistent; for tests

Opening does not send a request to a bucket. Nothing here relies on conditional writes (``If-None-Match``), which some
stores accept and ignore: keys are unique, and the metadata store decides what counts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, TypeAlias
from urllib.parse import unquote

from obstore.store import LocalStore, S3Store

from tallybook.core.errors import ArchiveDenied, InvalidConfig
from tallybook.runtime.clock import Clock
from tallybook.runtime.disk.os_disk import RealDisk
from tallybook.runtime.rng import Rng
from tallybook.runtime.security.archive_keys import ArchiveKeyFile
from tallybook.runtime.tasks import Tasks, ThreadWorkers, Workers

from .cloud.buckets import CONNECT, FOREVER, ONCE, check_endpoint, open_azure, open_gcs
from .cloud.obstore_driver import ObstoreStore
from .cloud.s3_client import S3Client
from .cloud.s3_writes import S3Writes
from .credentials import AzureCredentials, S3Credentials, StoreCredentials
from .directory_writes import DirectoryWrites
from .encryption.store import EncryptedStore
from .keys import is_key
from .memory import MemoryObjectStore
from .port import ObjectStore
from .retries import RetryingStore, RetryPolicy, RetrySettings

_HELP: Final = (
    "expected s3://bucket/prefix, gs://bucket/prefix, az://container/prefix or file:///path/of/directory "
    "(file:///./path if relative)"
)
_S3_BUCKET: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,254}")
_GCS_BUCKET: Final = re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]")
_AZURE_CONTAINER: Final = re.compile(r"(?=.{3,63}\Z)[a-z0-9]+(?:-[a-z0-9]+)*")
_OTHER_NAMES: Final = {
    "s3a": "s3://bucket/prefix", "s3n": "s3://bucket/prefix", "gcs": "gs://bucket/prefix",
    "abfs": "az://container/prefix", "abfss": "az://container/prefix", "azure": "az://container/prefix",
    "wasb": "az://container/prefix", "wasbs": "az://container/prefix",
}  # fmt: skip
"""Schemes of other programs for the same stores."""
_CONNECTIONS: Final = 8
_ENCRYPTION_THREADS: Final = 2
"""Threads that encrypt and decrypt."""


@dataclass(frozen=True, slots=True)
class S3Url:
    """A bucket, and the prefix of all keys: empty, or ending with a slash."""

    bucket: str
    prefix: str


@dataclass(frozen=True, slots=True)
class GcsUrl:
    """A bucket of Google Cloud Storage, and the prefix of all keys, as for S3."""

    bucket: str
    prefix: str


@dataclass(frozen=True, slots=True)
class AzureUrl:
    """A container of Azure Blob Storage, and the prefix of all keys, as for S3."""

    container: str
    prefix: str


@dataclass(frozen=True, slots=True)
class FileUrl:
    """A directory on this host; a relative path starts with a dot."""

    path: str


@dataclass(frozen=True, slots=True)
class MemoryUrl:
    """In-memory store of this process."""


ObjectsUrl: TypeAlias = S3Url | GcsUrl | AzureUrl | FileUrl | MemoryUrl


def parse_url(url: str) -> ObjectsUrl:
    """Parse the URL of an object store.

    Raises:
        InvalidConfig: it is invalid; the message says why, and repeats no part that may be secret.
    """
    scheme, colon, rest = url.partition(":")
    if not colon or not url.isprintable():
        raise InvalidConfig(f"{url!r} is not the URL of an object store: {_HELP}")
    if meant := _OTHER_NAMES.get(scheme):
        raise InvalidConfig(
            f"use {meant} instead of {scheme}://; the Azure account comes from AZURE_STORAGE_ACCOUNT_NAME: {_HELP}"
        )
    if "@" in url or "?" in url or "#" in url:
        raise InvalidConfig(
            f"the {scheme}: URL of an object store has no user, password, query or fragment; keys come from "
            f"the AWS_*, GOOGLE_* and AZURE_* variables: {_HELP}"
        )
    if scheme == "memory" and not rest:
        return MemoryUrl()
    if scheme == "file":
        return _parse_file(url, rest)
    if scheme == "s3":
        return S3Url(*_parse_bucket(url, rest, _S3_BUCKET))
    if scheme == "gs":
        return GcsUrl(*_parse_bucket(url, rest, _GCS_BUCKET))
    if scheme == "az":
        return AzureUrl(*_parse_bucket(url, rest, _AZURE_CONTAINER))
    raise InvalidConfig(f"{url!r} is not the URL of an object store: {_HELP}")


class OpenedStore(EncryptedStore):
    """A store with retries and optional encryption. Users of archives get this one."""

    def __init__(self, store: RetryingStore, workers: Workers, keys: ArchiveKeyFile | None) -> None:
        super().__init__(store, workers, keys)
        self._encryption_workers = workers
        self._retries = store.retries
        self.below = store
        """The store without encryption: its objects as stored."""

    @property
    def retries(self) -> RetryPolicy:
        """Retry policy of the store below. Its counters are of ciphertext."""
        return self._retries

    async def close(self) -> None:
        """Close the store below, and end the encryption threads."""
        await super().close()
        await self._encryption_workers.close()


async def open_store(
    url: str,
    clock: Clock,
    rng: Rng,
    settings: RetrySettings | None = None,
    *,
    allow_http: bool = False,
    archive_keys: str = "",
    credentials: StoreCredentials | None = None,
) -> OpenedStore:
    """Open an object store with retries and optional encryption.

    Args:
        rng: for jitter, and for the names of unfinished files.
        allow_http: whether an endpoint on another host may go without TLS.
        archive_keys: file with the keys of encrypted objects; empty: writes are not encrypted, and encrypted objects
            cannot be read.
        credentials: used instead of the environment's.

    Raises:
        NewerFormat: a newer Tallybook wrote the key file.
        InvalidConfig: the URL or the environment is invalid.
        ArchiveDenied: the directory does not exist, or there are no credentials for S3. Buckets are not checked, and
            credentials of other clouds only for readability.
        ArchiveUnavailable: the source of credentials does not answer.
    """
    where, workers = parse_url(url), ThreadWorkers(_ENCRYPTION_THREADS, "encryption")
    try:
        keys = await workers.run(ArchiveKeyFile, archive_keys, clock, workers) if archive_keys else None
        store = await _open_plain(where, clock, rng, settings, credentials, allow_http=allow_http)
    except BaseException:
        await workers.close()
        raise
    return OpenedStore(store, workers, keys)


async def _open_plain(
    where: ObjectsUrl,
    clock: Clock,
    rng: Rng,
    settings: RetrySettings | None,
    credentials: StoreCredentials | None,
    *,
    allow_http: bool,
) -> RetryingStore:
    retries = RetryPolicy(clock, rng.fork("patience"), settings)
    s3 = credentials if isinstance(credentials, S3Credentials) and isinstance(where, S3Url) else None
    azure = credentials if isinstance(credentials, AzureCredentials) and isinstance(where, AzureUrl) else None
    if credentials is not None and s3 is None and azure is None:
        kind = "S3" if isinstance(credentials, S3Credentials) else "Azure"
        raise InvalidConfig(f"credentials for {kind} were given, but the archive is not there")
    store: ObjectStore
    if isinstance(where, MemoryUrl):
        store = MemoryObjectStore(clock)
    elif isinstance(where, FileUrl):
        store = await _open_directory(where.path, rng.fork("uploads"))
    elif isinstance(where, GcsUrl):
        store = open_gcs(where.bucket, where.prefix, retries, allow_http=allow_http)
    elif isinstance(where, AzureUrl):
        store = open_azure(where.container, where.prefix, retries, azure, allow_http=allow_http)
    else:
        store = await _open_s3(where, retries, s3, allow_http=allow_http)
    return RetryingStore(store, retries)


async def _open_directory(path: str, rng: Rng) -> ObstoreStore:
    disk = RealDisk()
    try:
        await disk.list(path)
        source = LocalStore(path)
    except FileNotFoundError as error:
        await disk.close()
        raise ArchiveDenied(
            f"file://{path}: the directory does not exist; create it, or record the new location of the archive "
            "with 'tallybook offload relocate'"
        ) from error
    except BaseException:
        await disk.close()
        raise
    return ObstoreStore(source, DirectoryWrites(disk, path, source, rng, disk.close), f"file://{path}", in_order=False)


async def _open_s3(
    where: S3Url, retries: RetryPolicy, credentials: S3Credentials | None, *, allow_http: bool
) -> ObstoreStore:
    url = f"s3://{where.bucket}/{where.prefix}".rstrip("/")
    workers = ThreadWorkers(_CONNECTIONS, "s3")
    try:
        client = await workers.run(S3Client, workers, _CONNECTIONS, credentials)
        plain = check_endpoint(url, client.endpoint, allow_http=allow_http)
        await client.credentials()
    except BaseException:
        await workers.close()
        raise
    source = S3Store(
        where.bucket,
        prefix=where.prefix or None,
        endpoint=client.endpoint,
        region=client.region,
        credential_provider=client.credentials,
        virtual_hosted_style_request=False,
        client_options={"allow_http": plain, "timeout": FOREVER, "connect_timeout": CONNECT},
        retry_config=ONCE,
    )
    # The failure of an upload task is reported to the waiter of the part.
    tasks = Tasks("s3", lambda _name, _error: None)
    writes = S3Writes(client, where.bucket, where.prefix, url, retries, tasks)
    return ObstoreStore(source, writes, url, in_order=True)


def _parse_file(url: str, rest: str) -> FileUrl:
    path = unquote(rest.removeprefix("//")).rstrip("/")
    if not rest.startswith("///") or not path or "\0" in path:
        raise InvalidConfig(f"{url!r} names no directory: {_HELP}")
    return FileUrl(path[1:] if path.startswith(("/./", "/../")) else path)


def _parse_bucket(url: str, rest: str, names: re.Pattern[str]) -> tuple[str, str]:
    bucket, _, prefix = rest.removeprefix("//").rstrip("/").partition("/")
    if not rest.startswith("//") or not names.fullmatch(bucket):
        raise InvalidConfig(f"{url!r} names no {'container' if names is _AZURE_CONTAINER else 'bucket'}: {_HELP}")
    if prefix and not is_key(prefix):
        raise InvalidConfig(f"{url!r}: a prefix has letters, digits and . _ - = in parts that do not begin with a dot")
    return bucket, f"{prefix}/" if prefix else ""
