"""The files whose functions get the bytes of one entry, from its append to a row in Spark: the walks name all of them.

A profiler looks at each call of the product's functions: at the arguments, the result, and the fields of ``self`` that
are bytes. If these contain the payload, the file of the function counts, and that of its caller.
"""

import asyncio
import re
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pyarrow as pa
from pyspark.sql.types import BinaryType, LongType, StructField, StructType, TimestampType

from tallybook.bookie.process.server import serve
from tallybook.client.client import Client
from tallybook.core.limits import MIB
from tallybook.core.settings import BookieSettings, JournalSettings, OffloadSettings, StorageSettings
from tallybook.offload.open_archive import open_archive
from tallybook.runtime.process import RealProcess
from tallybook.runtime.rng import SeededRng
from tallybook.spark.source import TallybookDataSource

ROOT = Path(__file__).resolve().parents[2]
UNDERSTAND = ROOT / "docs" / "understand"
PAYLOAD = SeededRng(7).token(512)
"""Random, so that it is found in compressed pages, too."""
MAX_DEPTH = 4
ROW = StructType([
    StructField("ledger_id", LongType(), False), StructField("entry_id", LongType(), False),
    StructField("written_at", TimestampType(), False), StructField("crc32c", LongType(), False),
    StructField("payload", BinaryType(), False),
])  # fmt: skip


def contains(value: Any, depth: int = 0) -> bool:
    """Whether the payload is in a value, or in one that it holds."""
    if isinstance(value, bytes | bytearray | memoryview):
        try:
            return PAYLOAD in bytes(value)
        except ValueError:
            return False  # a released view
    if isinstance(value, pa.Table | pa.RecordBatch):
        return any(contains(column) for column in value.columns)
    if isinstance(value, pa.ChunkedArray):
        return any(contains(chunk) for chunk in value.chunks)
    if isinstance(value, pa.Array):
        return any(contains(memoryview(buffer)) for buffer in value.buffers() if buffer is not None)
    if depth == MAX_DEPTH:
        return False
    if isinstance(value, tuple | list | set | frozenset):
        return any(contains(each, depth + 1) for each in tuple(value))
    if isinstance(value, dict):
        return any(contains(each, depth + 1) for each in tuple(value.values()))
    return False


def fields(value: Any) -> list[Any]:
    """The fields of an object that are bytes."""
    names = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
    found = [*getattr(value, "__dict__", {}).values(), *(getattr(value, name, None) for name in names)]
    return [each for each in found if isinstance(each, bytes | bytearray | memoryview)]


class Profile:
    """Collects the files."""

    def __init__(self) -> None:
        self.files: set[str] = set()
        self._thread = threading.local()
        self._names: dict[CodeType, str | None] = {}

    def __call__(self, frame: FrameType, event: str, result: Any) -> None:
        name = self._name(frame)
        if name is None or event not in {"call", "return"} or getattr(self._thread, "looking", False):
            return
        self._thread.looking = True
        try:
            if self._passes(frame, event, result):
                self.files.add(name)
                caller = frame.f_back and self._name(frame.f_back)
                if caller:
                    self.files.add(caller)
        finally:
            self._thread.looking = False

    @staticmethod
    def _passes(frame: FrameType, event: str, result: Any) -> bool:
        if event == "return":
            return contains(result)
        code, values = frame.f_code, frame.f_locals
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        return contains(fields(values.get("self"))) or contains([values.get(name) for name in names])

    def _name(self, frame: FrameType) -> str | None:
        code = frame.f_code
        if code not in self._names:
            file = Path(code.co_filename)
            inside = file.is_relative_to(ROOT) and not file.is_relative_to(ROOT / "tests")
            relative = file.resolve().relative_to(ROOT).as_posix() if inside else ""
            self._names[code] = relative if relative and not relative.startswith(".venv") else None
        return self._names[code]


@contextmanager
def profiled(profile: Profile) -> Iterator[None]:
    """Profile this thread, and those that are started within the block."""
    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        yield
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


@asynccontextmanager
async def bookie(directory: Path, metadata: str) -> AsyncIterator[None]:
    """One bookie, stopped cleanly at the end of the block."""
    settings = BookieSettings(
        bookie_id="b", data_directory=str(directory), metadata=metadata,
        listen="127.0.0.1:0", http_listen="127.0.0.1:0",
        journal=JournalSettings(segment_bytes=8 * MIB, segment_count=3),
        storage=StorageSettings(write_cache_bytes=2 * MIB, min_free_bytes=MIB),
    )  # fmt: skip
    stop, ready = asyncio.Event(), asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(serve(settings, stop, RealProcess(), ready))
        await ready.wait()
        try:
            yield
        finally:
            stop.set()


def rows_in_spark(metadata: str, ledger_id: int) -> int:
    """The number of rows of a query, read in this thread as in a task."""
    reader = TallybookDataSource({"metadata": metadata, "ledger": str(ledger_id)}).reader(ROW)
    return sum(batch.num_rows for part in reader.partitions() for batch in reader.read(part))


def count_in(walk: str) -> int:
    """The number of files that the introduction of a walk states."""
    return int(re.findall(r"\*\*(\d+) files\*\*", (UNDERSTAND / walk).read_text("utf-8"))[0])


def named_by(*walks: str) -> set[str]:
    """The files that walks name."""
    texts = [(UNDERSTAND / walk).read_text("utf-8") for walk in walks]
    return {file for text in texts for file in re.findall(r"\[`([\w/.]+\.py)`", text)}


async def test_the_walks_name_every_file_that_an_entry_passes_and_count_them(tmp_path: Path) -> None:
    metadata, data, archive = f"sqlite://{tmp_path}/metadata.db", tmp_path / "bookie", tmp_path / "archive"
    data.mkdir(mode=0o700)
    archive.mkdir(mode=0o700)
    profile = Profile()
    with profiled(profile):
        async with bookie(data, metadata), Client(metadata) as client:
            writer = await client.create_ledger(ensemble=1, write_quorum=1, ack_quorum=1)
            await writer.append(PAYLOAD)
            appended = set(profile.files)
            await writer.close()
        # The bookie has flushed its write cache.
        async with bookie(data, metadata), Client(metadata) as client:
            async with open_archive(client, f"file://{archive}", record=True) as bucket:
                await bucket.offloader(client, OffloadSettings(max_set_wait_s=0)).run_pass()
            assert await asyncio.to_thread(rows_in_spark, metadata, writer.id) == 1
    assert appended <= named_by("walk-append.md")
    assert profile.files <= named_by("walk-append.md", "walk-checkpoint.md", "walk-offload.md")
    assert (len(appended), len(profile.files)) == (count_in("walk-append.md"), count_in("walk-offload.md"))
