"""The object stores under contract: a fresh bucket for each test, opened as often as needed.

S3 is moto on loopback, one server for the session. ``make test-s3`` adds a real one, which it names in
TALLYBOOK_S3_TEST_ENDPOINT, with its keys in TALLYBOOK_S3_TEST_KEY and TALLYBOOK_S3_TEST_SECRET. The same moto stands in
for Google Cloud Storage, whose XML interface equals that of S3 for all calls in use. Azure is Azurite, which
``make test-azure`` names in TALLYBOOK_AZURE_TEST_ENDPOINT.
"""

import asyncio
import base64
import hashlib
import hmac
import itertools
import logging
import os
import time
import urllib.parse
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from email.utils import formatdate
from functools import cached_property
from pathlib import Path
from typing import Any

import botocore.session
import pytest
from moto.server import ThreadedMotoServer

from tallybook.archive.objects.encryption.store import EncryptedStore
from tallybook.archive.objects.memory import MemoryObjectStore
from tallybook.archive.objects.open import open_store
from tallybook.archive.objects.port import ObjectStore, UnfinishedUpload
from tallybook.archive.objects.retries import RetrySettings
from tallybook.runtime.clock import RealClock
from tallybook.runtime.rng import SystemRng
from tallybook.runtime.security.archive_keys import add_key
from tallybook.runtime.tasks import InlineWorkers

from ...support.archive_keys import InMemoryKeys

BUCKET = "contract"
CONTAINER = f"contract-{os.getpid()}"
IMPATIENT = RetrySettings(first_pause=1000.0)
"""Tries once: what a test sees is what the driver said."""

_numbers = itertools.count()


@dataclass
class Place:
    """The object store of one test."""

    name: str
    open: Callable[[], Any]
    put_foreign: Callable[[str, bytes], None]
    """Put something there that is not ours."""
    uploads_of: Callable[[str], list[UnfinishedUpload]] | None = None
    """The uploads of one key, as listed by the server itself."""
    parts_of: Callable[[UnfinishedUpload], int] | None = None

    async def unfinished(self, store: ObjectStore, key: str) -> list[UnfinishedUpload]:
        """The uploads of one key. MinIO lists them only for requests of this key, and removes them by itself."""
        found = [upload for upload in await store.unfinished_uploads() if upload.key == key]
        if self.uploads_of is None:
            return found
        real = self.uploads_of(key)
        told = {"s3": set(), "gcs": set()}.get(self.name, {upload.upload_id for upload in real})
        assert self.name == "s3" or {upload.upload_id for upload in found} == told
        return real

    async def seen(self, key: str) -> None:
        """Wait until the server, if it lists uploads, has one of ``key``."""
        deadline = time.monotonic() + 10
        while self.uploads_of is not None and not self.uploads_of(key):
            assert time.monotonic() < deadline, "the upload never began"
            await asyncio.sleep(0.01)

    async def left(self, store: ObjectStore, key: str) -> UnfinishedUpload:
        """An abandoned upload of ``key``."""
        await store.upload(key).write(bytes(17 << 20))
        return await self.arrived(store, key)

    async def arrived(self, store: ObjectStore, key: str) -> UnfinishedUpload:
        """The upload of ``key``, once two parts of it have arrived: moto mistakes what changes while it looks."""
        (found,) = await self.unfinished(store, key)
        deadline = time.monotonic() + 10
        while self.parts_of is not None and self.parts_of(found) < 2:
            assert time.monotonic() < deadline, "the parts never arrived"
            await asyncio.sleep(0.01)
        return found

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[ObjectStore]:
        store = await self.open()
        try:
            yield store
        finally:
            await store.close()


@dataclass
class Server:
    """An S3 server with a bucket."""

    endpoint: str
    key: str
    secret: str

    @cached_property
    def client(self) -> Any:
        return botocore.session.get_session().create_client(
            "s3", endpoint_url=self.endpoint, region_name="us-east-1", aws_access_key_id=self.key,
            aws_secret_access_key=self.secret,
        )  # fmt: skip

    def with_bucket(self) -> "Server":
        if not any(bucket["Name"] == BUCKET for bucket in self.client.list_buckets()["Buckets"]):
            self.client.create_bucket(Bucket=BUCKET)
        return self

    def variables(self) -> dict[str, str]:
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": self.key,
            "AWS_SECRET_ACCESS_KEY": self.secret,
            "AWS_REGION": "us-east-1",
            "AWS_CONFIG_FILE": "/dev/null",
            "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
            "AWS_EC2_METADATA_DISABLED": "true",
        }


@dataclass
class AzureServer:
    """An Azurite with a container. Requests for which obstore has no call are signed here."""

    endpoint: str
    account: str = "devstoreaccount1"
    key: str = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
    """Every Azurite's."""

    def ask(self, method: str, path: str, query: str = "", body: bytes = b"", **headers: str) -> None:
        sent = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-12-02", **headers}
        named = [f"{name}:{value}" for name, value in sorted(sent.items())]
        length = str(len(body)) if body else ""
        kind = "application/octet-stream"
        place = f"/{self.account}/{self.account}{path}" + (f"\n{query.replace('=', ':')}" if query else "")
        text = "\n".join([method, "", "", length, "", kind, "", "", "", "", "", "", *named, place])
        signed = hmac.new(base64.b64decode(self.key), text.encode(), hashlib.sha256).digest()
        sent |= {
            "Authorization": f"SharedKey {self.account}:{base64.b64encode(signed).decode()}",
            "Content-Type": kind,
        }
        request = urllib.request.Request(
            f"{self.endpoint}{path}?{query}", method=method, headers=sent, data=body or None
        )
        urllib.request.urlopen(request).close()

    def variables(self) -> dict[str, str]:
        return {
            "AZURE_STORAGE_ENDPOINT": self.endpoint,
            "AZURE_STORAGE_ACCOUNT_NAME": self.account,
            "AZURE_STORAGE_ACCOUNT_KEY": self.key,
        }


REAL_AZURE = [pytest.param("azure", marks=pytest.mark.azure)] if "TALLYBOOK_AZURE_TEST_ENDPOINT" in os.environ else []
collect_ignore = [] if REAL_AZURE else ["test_azure.py"]
REAL_S3 = [pytest.param("s3", marks=pytest.mark.s3)] if "TALLYBOOK_S3_TEST_ENDPOINT" in os.environ else []
S3_SERVERS = ["moto", *REAL_S3]


@pytest.fixture(scope="session", autouse=True)
def moto() -> Iterator[Server]:
    """S3 as moto plays it. For all tests here, so that it is there before the first one counts its threads."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    moto = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    moto.start()
    host, port = moto.get_host_and_port()
    yield Server(f"http://{host}:{port}", "testing", "testing").with_bucket()
    moto.stop()


@pytest.fixture(scope="session")
def s3() -> Server:
    """The server that ``make test-s3`` started."""
    return Server(*(os.environ[f"TALLYBOOK_S3_TEST_{name}"] for name in ("ENDPOINT", "KEY", "SECRET"))).with_bucket()


@pytest.fixture(scope="session")
def azure() -> AzureServer:
    """The server that ``make test-azure`` started."""
    server = AzureServer(os.environ["TALLYBOOK_AZURE_TEST_ENDPOINT"])
    server.ask("PUT", f"/{CONTAINER}", "restype=container")
    return server


@contextmanager
def s3_place(name: str, server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """A place in a bucket of S3 or Google: moto does not distinguish them."""
    for variable, value in server.variables().items():
        monkeypatch.setenv(variable, value)
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.endpoint)
    scheme = "gs" if name == "gcs" else "s3"
    prefix = f"place-{os.getpid()}/{next(_numbers)}"

    def put_foreign(key: str, data: bytes) -> None:
        server.client.put_object(Bucket=BUCKET, Key=f"{prefix}/{key}", Body=data)

    def opened() -> Any:
        return open_store(f"{scheme}://{BUCKET}/{prefix}", RealClock(), SystemRng(), IMPATIENT)

    def uploads_of(key: str) -> list[UnfinishedUpload]:
        page = server.client.list_multipart_uploads(Bucket=BUCKET, Prefix=f"{prefix}/{key}")
        return [UnfinishedUpload(key, found["UploadId"], 0) for found in page.get("Uploads", [])]

    def parts_of(upload: UnfinishedUpload) -> int:
        page = server.client.list_parts(Bucket=BUCKET, Key=f"{prefix}/{upload.key}", UploadId=upload.upload_id)
        return len(page.get("Parts", []))

    yield Place(name, opened, put_foreign, uploads_of, parts_of)


@contextmanager
def azure_place(server: AzureServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """A place in a container."""
    for variable, value in server.variables().items():
        monkeypatch.setenv(variable, value)
    prefix = f"place-{os.getpid()}/{next(_numbers)}"

    def put_foreign(key: str, data: bytes) -> None:
        path = f"/{CONTAINER}/{prefix}/{urllib.parse.quote(key)}"
        server.ask("PUT", path, body=data, **{"x-ms-blob-type": "BlockBlob"})

    def opened() -> Any:
        return open_store(f"az://{CONTAINER}/{prefix}", RealClock(), SystemRng(), IMPATIENT)

    yield Place("azure", opened, put_foreign)


@contextmanager
def directory_place(root: Path, *, archive_keys: str = "") -> Iterator[Place]:
    """A place in a directory; with keys, its objects are encrypted."""
    root.mkdir()

    def put_foreign(key: str, data: bytes) -> None:
        file = root / key
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)

    def opened() -> Any:
        return open_store(f"file://{root}", RealClock(), SystemRng(), IMPATIENT, archive_keys=archive_keys)

    yield Place("directory", opened, put_foreign)


@contextmanager
def memory_place(keys: InMemoryKeys | None = None) -> Iterator[Place]:
    """An in-memory store that no other process can reach; with keys, its objects are encrypted."""
    store: ObjectStore = MemoryObjectStore(RealClock())
    if keys is not None:
        store = EncryptedStore(store, InlineWorkers(), keys)

    async def opened() -> ObjectStore:
        return store

    yield Place("memory", opened, lambda _key, _data: None)


@contextmanager
def place_on(store: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """A place on a given store."""
    if store == "memory":
        made = memory_place()
    elif store == "directory":
        made = directory_place(request.getfixturevalue("tmp_path") / "archive")
    elif store == "sealed-memory":
        made = memory_place(InMemoryKeys())
    elif store == "sealed-directory":
        root = request.getfixturevalue("tmp_path")
        add_key(root / "keys.json")
        made = directory_place(root / "archive", archive_keys=str(root / "keys.json"))
    elif store == "azure":
        made = azure_place(request.getfixturevalue("azure"), monkeypatch)
    else:
        made = s3_place(store, request.getfixturevalue("moto" if store == "gcs" else store), monkeypatch)
    with made as place:
        yield place


TELLING = ["memory", "directory", "sealed-memory", "sealed-directory", *S3_SERVERS]
STREAMED = ["gcs", *REAL_AZURE]


@pytest.fixture(params=[*TELLING, *STREAMED])
def place(request, monkeypatch) -> Iterator[Place]:
    """A place on any store."""
    with place_on(request.param, request, monkeypatch) as place:
        yield place


@pytest.fixture(params=TELLING)
def telling_place(request, monkeypatch) -> Iterator[Place]:
    """A place on any store that lists unfinished uploads."""
    with place_on(request.param, request, monkeypatch) as place:
        yield place


@pytest.fixture(params=STREAMED)
def streamed_place(request, monkeypatch) -> Iterator[Place]:
    """A place on any store that does not list unfinished uploads."""
    with place_on(request.param, request, monkeypatch) as place:
        yield place


@dataclass
class Bucket:
    """A bucket of one test, which can be deleted and created again."""

    server: Server
    name: str
    scheme: str = "s3"

    def make(self) -> None:
        self.server.client.create_bucket(Bucket=self.name)

    def remove(self) -> None:
        for found in self.server.client.list_objects_v2(Bucket=self.name).get("Contents", []):
            self.server.client.delete_object(Bucket=self.name, Key=found["Key"])
        self.server.client.delete_bucket(Bucket=self.name)

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[ObjectStore]:
        store = await open_store(f"{self.scheme}://{self.name}/archive", RealClock(), SystemRng(), IMPATIENT)
        try:
            yield store
        finally:
            await store.close()


@pytest.fixture(params=[*S3_SERVERS, "gcs"])
def bucket(request, monkeypatch) -> Bucket:
    """A bucket on any server that has such, S3's or Google's."""
    gcs = request.param == "gcs"
    server = request.getfixturevalue("moto" if gcs else request.param)
    for variable, value in server.variables().items():
        monkeypatch.setenv(variable, value)
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.endpoint)
    # obstore sends Google's every other sign escaped, which moto takes for another name.
    bucket = Bucket(server, f"bucket{os.getpid()}x{next(_numbers)}", "gs" if gcs else "s3")
    bucket.make()
    return bucket


@pytest.fixture
def azure_url(azure, monkeypatch) -> str:
    """The URL of an Azure container, with its keys in the environment."""
    for variable, value in azure.variables().items():
        monkeypatch.setenv(variable, value)
    return f"az://{CONTAINER}/mine"


@pytest.fixture
def now_ms() -> Callable[[], int]:
    """The time of the object store."""
    return lambda: RealClock().wall_us() // 1000
