"""Real processes for tests (commands, clusters started by ``tallybook up``), and servers with scripted answers."""

import asyncio
import contextlib
import json
import logging
import multiprocessing
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

import botocore.session
import pytest
from moto.server import ThreadedMotoServer

from tallybook.cli import app
from tallybook.client.client import Client

TALLYBOOK = [sys.executable, "-P", "-m", "tallybook.cli"]
# Journals small enough to be made in a moment; the sizes only change when something wraps or is flushed.
SMALL = ["--set", "journal.segment_bytes=8MiB", "--set", "storage.write_cache_bytes=32MiB",
         "--set", "storage.min_free_bytes=1MiB"]  # fmt: skip
# Smaller still: several checkpoints, segments and entry logs in every load.
SMALLEST = ["--set", "journal.segment_bytes=2MiB", "--set", "journal.segment_count=6",
            "--set", "storage.write_cache_bytes=4MiB", "--set", "storage.entry_log_bytes=8MiB",
            "--set", "storage.flush_interval_ms=200", "--set", "storage.min_free_bytes=1MiB"]  # fmt: skip
PATIENCE_SECONDS = 60
CHROMIUM = os.environ.get("TALLYBOOK_CHROMIUM", "")
CHROMIUM_FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
                  "--disable-background-networking", "--disable-component-update", "--disable-sync"]  # fmt: skip
PAGE_PATIENCE_MS = 45_000
SCREENSHOTS = os.environ.get("TALLYBOOK_SCREENSHOTS", "")


@dataclass
class Result:
    """The result of a command."""

    code: int
    out: bytes
    err: str

    @property
    def json(self) -> Any:
        """Standard output, as the one JSON value it must be."""
        return json.loads(self.out)

    @property
    def error(self) -> dict[str, Any]:
        """The error object that --json prints, and nothing beside it."""
        (line,) = self.err.splitlines()
        return json.loads(line)["error"]

    @property
    def last_words(self) -> dict[str, Any]:
        """The error object at the end of what a bookie has logged."""
        return json.loads(self.err.splitlines()[-1])["error"]


def environment(**more: str) -> dict[str, str]:
    """The environment of a child: nothing of ours that would change what the command does."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TALLYBOOK", "GRPC_"))}
    return {**kept, "COLUMNS": "100", **more}


class Forker:
    """A process that has loaded every command, and forks for each one that is run (forked_commands.py)."""

    def __init__(self) -> None:
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        program = Path(__file__).with_name("forked_commands.py")
        with theirs:
            self._process = subprocess.Popen([sys.executable, "-P", program], stdin=theirs, env=environment())

    def run(self, arguments: list[str], stdin: bytes, timeout: float, more: dict[str, str]) -> Result:
        """Run a command to its end."""
        with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            given.write(stdin)
            given.seek(0)
            request = json.dumps([arguments, environment(**more)]).encode()
            self._channel.settimeout(PATIENCE_SECONDS)
            socket.send_fds(self._channel, [request], [given.fileno(), out.fileno(), err.fileno()])
            pid = int(self._channel.recv(100))
            self._channel.settimeout(timeout)
            try:
                code = int(self._channel.recv(100))
            except TimeoutError:
                os.kill(pid, signal.SIGKILL)
                self._channel.settimeout(PATIENCE_SECONDS)
                self._channel.recv(100)
                raise subprocess.TimeoutExpired(arguments, timeout) from None
            out.seek(0)
            err.seek(0)
            return Result(code, out.read(), err.read().decode())

    def close(self) -> None:
        """End the process."""
        self._channel.close()
        self._process.wait(PATIENCE_SECONDS)


_forkers: list[Forker] = []


@pytest.fixture(scope="session")
def forker() -> Iterator[None]:
    """The process from which ``tallybook`` forks commands."""
    _forkers.append(Forker())
    yield
    _forkers.pop().close()


def tallybook(*arguments: object, stdin: bytes = b"", timeout: float = PATIENCE_SECONDS, **more: str) -> Result:
    """Run one command to its end; fail if it shows a traceback."""
    result = _forkers[0].run([*map(str, arguments)], stdin, timeout, more)
    assert "Traceback" not in result.err, result.err
    return result


def start(*arguments: object, through: Sequence[str] = (), **options: Any) -> subprocess.Popen[bytes]:
    """Start one command and leave it running; ``through`` another one that is given its words.

    Without ``preexec_fn``: code that runs between fork and exec meets gRPC's own threads half made.
    """
    return subprocess.Popen([*through, *TALLYBOOK, *map(str, arguments)], env=environment(), **options)


def wait_until(condition: Callable[[], Any], what: str, timeout: float = PATIENCE_SECONDS) -> Any:
    """Poll until ``condition`` gives something; fail after ``timeout`` seconds."""
    deadline = time.monotonic() + timeout
    while not (found := condition()):
        if time.monotonic() > deadline:
            pytest.fail(f"waited {timeout} s in vain until {what}")
        time.sleep(0.01)
    return found


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


@dataclass
class Up:
    """A running ``tallybook up``."""

    process: subprocess.Popen[bytes]
    data: Path
    ready: str = ""
    pids: list[int] = field(default_factory=list)

    @property
    def metadata(self) -> str:
        """URI of the metadata store."""
        return self.ready.removeprefix("ready ")

    def __call__(self, *arguments: object, **options: Any) -> Result:
        """Run a command on this cluster."""
        return tallybook(*arguments, TALLYBOOK_METADATA=self.metadata, **options)

    def create(self) -> int:
        """A new ledger, made in this process because that is faster."""

        async def work() -> int:
            async with Client(self.metadata) as client:
                return (await client.create_unowned_ledger()).ledger_id

        return asyncio.run(work())

    def confirmed(self, ledger: int) -> int:
        """The number of entries of a ledger that readers see."""

        async def work() -> int:
            async with Client(self.metadata) as client:
                return (await client.open_ledger(ledger, recover=False)).last_add_confirmed + 1

        return asyncio.run(work())

    def run_file(self, number: int) -> dict[str, Any]:
        """The state reported by a bookie."""
        return json.loads((self.data / f"bookie-{number}" / "run.json").read_text())

    def stop(self, number: int = signal.SIGINT) -> int:
        """End it; give its exit code."""
        self.process.send_signal(number)
        return self.process.wait(PATIENCE_SECONDS)


@contextmanager
def up(data: Path, *options: object, bookies: int = 3, settings: list[str] = SMALL) -> Iterator[Up]:
    """A cluster that is ready; it is killed in the end if the test has not stopped it."""
    with open(data.with_suffix(".err"), "wb") as errors:
        process = start(
            "up", "--data", data, "--bookies", bookies, "--no-offload", "--no-gateway", "--no-console", *settings,
            *options,
            stdout=subprocess.PIPE, stderr=errors,
        )  # fmt: skip
    try:
        running = Up(process, data, process.stdout.readline().decode().removesuffix("\n"))
        assert running.ready, data.with_suffix(".err").read_text()
        running.pids = [running.run_file(number)["pid"] for number in range(1, bookies + 1)]
        yield running
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        process.stdout.close()


@pytest.fixture(scope="session")
def cluster(forker: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """Three bookies that tests share. Leave them as they are."""
    with up(tmp_path_factory.mktemp("shared") / "cluster") as running:
        yield running
        assert running.stop() == 0


class Cli:
    """Helpers for tests of the command line: the functions above, since test files cannot import each other."""

    run = staticmethod(tallybook)
    start = staticmethod(start)
    up = staticmethod(up)
    wait_until = staticmethod(wait_until)
    alive = staticmethod(alive)
    small = SMALL
    patience = PATIENCE_SECONDS


@pytest.fixture
def other_disk(tmp_path: Path) -> Iterator[Path]:
    """A directory on another file system than all others of a test."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK) or memory.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("there is one file system here")
    with tempfile.TemporaryDirectory(dir=memory) as place:
        yield Path(place)


BLOCKED = """
import asyncio, time
from tallybook.runtime.clock import RealClock
from tallybook.runtime.metrics.registry import Metrics
from tallybook.runtime.tasks import Tasks
from tallybook.runtime.http.health_server import serve_health

async def main():
    tasks = Tasks("blocked", print)
    async with serve_health(Metrics(), "127.0.0.1:0", "", RealClock(), tasks) as address:
        print(address, flush=True)
        while True:
            until = time.monotonic() + 0.2
            while time.monotonic() < until:
                pass
            await asyncio.sleep(0.001)

asyncio.run(main())
"""


@pytest.fixture
def blocked() -> Iterator[str]:
    """The address of the metrics of a process whose event loop does nothing but compute."""
    process = subprocess.Popen([sys.executable, "-P", "-c", BLOCKED], stdout=subprocess.PIPE, text=True)
    try:
        yield process.stdout.readline().strip()
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.fixture(scope="session")
def cli(forker: None) -> Cli:
    """Commands as real processes."""
    return Cli()


@pytest.fixture(scope="module")
def chromium(forker: None) -> Iterator[Any]:
    """A browser. From here on this thread has a loop of its own that runs."""
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as engine:
        browser = engine.chromium.launch(executable_path=CHROMIUM, args=CHROMIUM_FLAGS, headless=True)
        yield browser
        browser.close()


@pytest.fixture
def plain_place() -> Iterator[Path]:
    """A directory for screenshots, with an archive: its name must not look like that of a test."""
    place = Path(tempfile.gettempdir()) / "tallybook"
    # All of it is removed in the end, so it must not exist before.
    place.mkdir()
    place.joinpath("archive").mkdir()
    yield place
    shutil.rmtree(place)


@pytest.fixture
def browse(chromium: Any) -> Iterator[Callable[..., Any]]:
    """``browse(url)``: a page of a new browser session, with the list of its requests and errors."""
    with contextlib.ExitStack() as undo:

        def opened(url: str, until: str = "#live.live", **options: object) -> Any:
            context = chromium.new_context(viewport={"width": 1280, "height": 820}, **options)
            undo.callback(context.close)
            context.set_default_timeout(PAGE_PATIENCE_MS)
            page = context.new_page()
            page.asked, page.complaints = [], []
            page.on("request", lambda request: page.asked.append(request.url))
            page.on("console", lambda said: page.complaints.append(said.text))
            page.on("pageerror", lambda error: page.complaints.append(str(error)))
            page.goto(url)
            page.wait_for_selector(until)
            return page

        yield opened


class ForkedBookie:
    """One life of a bookie on ``data``, forked from a process that has loaded everything: it begins in milliseconds."""

    def __init__(
        self, context: ForkServerContext, data: Path, bookie_id: str, metadata: str, settings: Sequence[str]
    ) -> None:
        self._data = data
        words = ["bookie", "run", "--data", str(data), "--id", bookie_id, "--metadata", metadata]
        arguments = [
            *words,
            "--log-level",
            "error",
            *SMALLEST,
            *(word for each in settings for word in ("--set", each)),
        ]
        self.process = context.Process(target=app.main, args=(arguments,), name=bookie_id)
        self.process.start()

    def ready(self) -> bool:
        """Whether this very process serves."""
        assert self.process.is_alive(), f"{self.process.name} ended with {self.process.exitcode}"
        try:
            return json.loads((self._data / "run.json").read_text())["pid"] == self.process.pid
        except FileNotFoundError:
            return False

    async def until_ready(self) -> int:
        """Wait until it serves; its port. Bound the wait."""
        while not self.ready():  # noqa: ASYNC110 (other processes set no event)
            await asyncio.sleep(0.01)
        port: int = json.loads((self._data / "run.json").read_text())["ports"]["grpc"]
        return port

    def kill(self) -> None:
        """End it at once, and wait until it has ended."""
        self.process.kill()
        self.process.join()


@pytest.fixture(scope="session")
def start_bookie() -> Callable[..., ForkedBookie]:
    """Begin the life of a bookie: data directory, id and metadata store are to be given; settings may be."""
    os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "false"
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        ["tallybook.bookie.process.server", "tallybook.cli.app", "tallybook.metadata.sqlite.client"]
    )
    warm = context.Process(target=os.getpid)
    warm.start()
    warm.join()
    return lambda data, bookie_id, metadata, *settings: ForkedBookie(context, data, bookie_id, metadata, settings)


@dataclass
class ToldServer:
    """Gives the scripted answers in their order, one per connection; ``b""`` closes it."""

    endpoint: str
    answers: list[bytes]
    requests: list[str] = field(default_factory=list)
    heads: list[str] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            if "100-continue" in head:
                writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            length = re.search(r"(?i)content-length: (\d+)", head)
            await reader.readexactly(int(length.group(1)) if length else 0)
            self.heads.append(head)
            self.requests.append(head.split(" HTTP/")[0])
            writer.write(self.answers.pop(0).replace(b" X\r\n", b" X\r\nConnection: close\r\n", 1))
            await writer.drain()
        writer.close()


@pytest.fixture(scope="session")
def s3_server() -> Iterator[str]:
    """The address of an S3 server that has one bucket, called "bucket"."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    client = botocore.session.get_session().create_client(
        "s3", endpoint_url=f"http://{host}:{port}", region_name="us-east-1", aws_access_key_id="any",
        aws_secret_access_key="any",
    )  # fmt: skip
    client.create_bucket(Bucket="bucket")
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def answering() -> Callable[..., Any]:
    """``async with answering(answers...) as server``; every answer has to be wanted."""

    @asynccontextmanager
    async def serving(*answers: bytes) -> AsyncIterator[ToldServer]:
        server = ToldServer("", list(answers))
        listener = await asyncio.start_server(server.serve, "127.0.0.1", 0)
        server.endpoint = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
        try:
            yield server
        finally:
            listener.close()
            await listener.wait_closed()
        assert not server.answers, "not every answer was wanted"

    return serving
