"""One Spark session for all tests of a process, and clusters that archive their ledgers."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from pyspark.sql import DataFrame, SparkSession

from tallybook.client.client import Client
from tallybook.spark import TallybookDataSource
from tallybook.stream import StreamStore
from tallybook.stream.records.record import Outgoing

BUCKET = "bucket [ab]{c,d}*%20é"
"""A name that a pattern, or a URL, reads otherwise."""
NOW = ("--set", "max_set_wait_s=0", "--set", "orphan_delay_s=0")

QUICK = {"JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
"""Queries end in a second: what the JVM would compile better would not come back."""


@pytest.fixture(scope="session")
def s3(s3_server: str) -> dict[str, str]:
    """The environment variables with the address and credentials of the S3 server."""
    return {
        "AWS_ENDPOINT_URL": s3_server, "AWS_REGION": "us-east-1", "AWS_ACCESS_KEY_ID": "any",
        "AWS_SECRET_ACCESS_KEY": "any", "AWS_CONFIG_FILE": "/dev/null", "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
        "AWS_EC2_METADATA_DISABLED": "true",
    }  # fmt: skip


@pytest.fixture(scope="session")
def spark(s3: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Spark on two threads of this machine, whose tasks may fail once and know the S3 server."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    scratch = tmp_path_factory.mktemp("spark")
    with pytest.MonkeyPatch.context() as while_it_starts:
        for name, value in {**s3, **QUICK}.items():
            while_it_starts.setenv(name, value)
        while_it_starts.setattr("pyspark.java_gateway.Popen", _spawned)
        session = _started(scratch)
    session.sparkContext.setLogLevel("OFF")
    session.dataSource.register(TallybookDataSource)
    yield session
    session.stop()


def _spawned(command: list[str], *, preexec_fn: object, **options: Any) -> "subprocess.Popen[bytes]":
    """Start the JVM without ``preexec_fn``, which needs a fork, and a fork breaks where an earlier test has used gRPC.

    What it is for is Ctrl-C, which does not reach a session of its own.
    """
    return subprocess.Popen(command, start_new_session=True, **options)


def _started(scratch: Path) -> SparkSession:
    return (
        SparkSession.builder.master("local[2,2]")
        .config("spark.driver.memory", "1g")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(scratch / "warehouse"))
        .config("spark.local.dir", str(scratch))
        .getOrCreate()
    )


@dataclass
class TaskOutput:
    """Ledgers on a cluster, with what was written to them."""

    up: Any
    bucket: Path
    archive: str
    variables: dict[str, str] = field(default_factory=dict)
    """The environment of the offloader for an S3 server."""
    entries: dict[int, list[bytes]] = field(default_factory=dict)

    @property
    def metadata(self) -> str:
        """URI of the metadata store."""
        return self.up.metadata

    def ledger(self, payloads: list[bytes], *, close: bool = True, **options: Any) -> int:
        """A ledger with these entries; where it is left open, readers see all of them."""

        async def work() -> int:
            async with Client(self.metadata) as client:
                ledger = await client.create_ledger(**options)
                half = len(payloads) // 2
                await ledger.append_many(payloads[:half])
                await ledger.append_many(payloads[half:])
                if close:
                    await ledger.close()
                else:
                    await ledger.show()
                return ledger.id

        ledger_id = asyncio.run(work())
        self.entries[ledger_id] = payloads
        return ledger_id

    def offload(self, *settings: str) -> dict[str, Any]:
        """One round of the offloader."""
        given = [word for setting in settings for word in ("--set", setting)]
        run = ("offload", "run", "--once", "--archive", self.archive, *NOW, *given, "--json")
        done = self.up(*run, **self.variables)
        assert done.code == 0, done.err
        return done.json

    def delete(self, ledger_id: int, password: bytes = b"") -> None:
        """Delete a ledger, a segment of a living stream, too."""

        async def work() -> None:
            async with Client(self.metadata) as client:
                await client.delete_ledger(ledger_id, password=password, force=True)

        asyncio.run(work())
        del self.entries[ledger_id]

    def rows(self, *ledger_ids: int) -> list[tuple[int, int, bytes]]:
        """The written entries, as rows."""
        return [
            (ledger_id, entry_id, payload)
            for ledger_id in ledger_ids or sorted(self.entries)
            for entry_id, payload in enumerate(self.entries[ledger_id])
        ]


@pytest.fixture(scope="module")
def written(cli: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TaskOutput]:
    """A cluster with an archive, for the tests of one file."""
    folder = tmp_path_factory.mktemp("tables")
    bucket = folder / BUCKET
    bucket.mkdir()
    with cli.up(folder / "data") as up:
        yield TaskOutput(up, bucket, f"file://{quote(str(bucket))}")


@pytest.fixture(scope="module")
def written_to_s3(cli: Any, s3: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[TaskOutput]:
    """A cluster whose archive is in S3, for the tests of one file."""
    folder = tmp_path_factory.mktemp("s3")
    with cli.up(folder / "data") as up:
        yield TaskOutput(up, folder, f"s3://bucket/{folder.name}", s3)


@dataclass
class Streams:
    """The streams of a cluster, and what was appended to them."""

    metadata: str
    appended: dict[str, list[Outgoing]] = field(default_factory=dict)

    def do(self, work: Any) -> Any:
        """The result of ``work`` on the streams."""

        async def all_of_it() -> Any:
            async with Client(self.metadata) as client, StreamStore(client) as streams:
                return await work(streams)

        return asyncio.run(all_of_it())

    def create(self, name: str, **policy: Any) -> None:
        """A stream."""
        self.do(lambda streams: streams.create(name, **policy))

    def append(self, name: str, records: Sequence[Outgoing | bytes], *, each: int = 10, rest: bool = True) -> None:
        """Append records, some in an envelope.

        Args:
            rest: whether the writer closes its segment; else it is left open, as by a process that has died.
        """

        async def work(streams: StreamStore) -> None:
            writer = await streams.writer(name)
            for at in range(0, len(records), each):
                await writer.append_many(records[at : at + each])
            await writer.commit()
            if rest:
                await writer.close()

        self.do(work)
        found = [one if isinstance(one, Outgoing) else Outgoing(one) for one in records]
        self.appended.setdefault(name, []).extend(found)

    def positions(self, name: str) -> list[str]:
        """Positions of all existing records, as printed."""

        async def work(streams: StreamStore) -> list[str]:
            return [str(record.position) async for record in streams.reader(name, follow=False)]

        return list(self.do(work))

    def payloads(self, name: str) -> list[bytes]:
        """Payloads of all appended records."""
        return [bytes(each.payload) for each in self.appended[name]]


@pytest.fixture(scope="module")
def streams(written: TaskOutput) -> Streams:
    """The streams of the cluster of a file's tests."""
    return Streams(written.metadata)


def rows_of(frame: DataFrame) -> list[tuple[int, int, bytes]]:
    """The rows of a table of entries, in order."""
    found = frame.select("ledger_id", "entry_id", "payload").collect()
    return sorted((row.ledger_id, row.entry_id, bytes(row.payload)) for row in found)


@pytest.fixture(scope="session")
def load(spark: SparkSession) -> Callable[..., DataFrame]:
    """``load(URI, option=value)``: a table by ``format("tallybook")``."""

    def table(metadata: str, **options: object) -> DataFrame:
        return spark.read.format("tallybook").option("metadata", metadata).options(**options).load()

    return table


@pytest.fixture(scope="session")
def rows() -> Callable[[DataFrame], list[tuple[int, int, bytes]]]:
    """The rows of a table of entries, in order."""
    return rows_of
