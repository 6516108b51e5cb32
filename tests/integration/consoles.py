"""Consoles of clusters for tests, in the test process or with a page, and clusters with activity."""

import asyncio
import json
import os
import signal
import ssl
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from tallybook.client.client import Client
from tallybook.core.limits import BATCH_TABLE_ROW_BYTES
from tallybook.core.settings import ConsoleSettings
from tallybook.gateway.console.server import serving

DEADLINE_SECONDS = 120
"""For one answer. A sweep on a busy machine takes seconds, and four times as long passes before the next one."""


class Console:
    """A console, with requests to it."""

    def __init__(self, address: str, client: Client, context: ssl.SSLContext | None = None) -> None:
        self.address = address
        self.client = client
        self._context = context

    async def __call__(self, method: str, path: str, body: object = None, **headers: str) -> tuple[int, Any]:
        """Status and JSON of an answer."""
        host, port = self.address.rsplit(":", 1)
        content = b"" if body is None else json.dumps(body).encode()
        given = {"host": self.address, "connection": "close", "content-length": str(len(content)), **headers}
        if method != "GET":
            given["content-type"] = "application/json"
        head = "".join(f"{name}: {value}\r\n" for name, value in given.items())
        reader, writer = await asyncio.open_connection(host, int(port), ssl=self._context)
        writer.write(f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode() + content)
        answer = await reader.read()
        writer.close()
        raw = answer.partition(b"\r\n\r\n")[2]
        return int(answer.split(b" ", 2)[1]), json.loads(raw) if raw.startswith(b"{") else raw

    async def get(self, path: str) -> Any:
        """The body of a GET that must succeed."""
        status, found = await self("GET", f"/api/v1/{path}")
        assert status == 200, found
        return found


@asynccontextmanager
async def console(metadata: str, context: ssl.SSLContext | None = None, **settings: Any) -> AsyncIterator[Console]:
    """A console of a cluster, in this process."""
    chosen = ConsoleSettings(metadata=metadata, listen="127.0.0.1:0", **settings)
    async with (
        asyncio.timeout(2 * DEADLINE_SECONDS),
        Client(metadata, chosen.client) as client,
        serving(client, chosen) as address,
    ):
        yield Console(address, client, context)


@contextmanager
def console_process(cli, metadata: str, errors: Path, *more: object) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """A console of a cluster; its URL and its process."""
    words = ["console", "run", "--json", "--metadata", metadata, "--listen", "127.0.0.1:0", *more]
    with errors.open("wb") as said:
        process = cli.start(*words, stdout=subprocess.PIPE, stderr=said)
    try:
        line = process.stdout.readline()
        assert line, errors.read_text()
        yield json.loads(line)["ready"], process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@contextmanager
def running(cli, *words: object, log: Path) -> Iterator[None]:
    """A command, as long as the block lasts."""
    with log.open("wb") as out:
        process = cli.start(*words, stdout=out, stderr=subprocess.STDOUT)
    try:
        yield
    finally:
        process.kill()
        process.wait()


async def eventually(ask: Console, path: str, fits: Callable[[Any], object]) -> Any:
    """The body of a GET as soon as it fits."""
    found = None
    try:
        async with asyncio.timeout(DEADLINE_SECONDS):
            while not fits(found := await ask.get(path)):  # noqa: ASYNC110 (no notification)
                await asyncio.sleep(0.1)
    except TimeoutError:
        raise AssertionError(f"{path} still answers after {DEADLINE_SECONDS} s: {found}") from None
    return found


def rows(page, label: str):
    """The rows of a table of a page."""
    return page.locator(f"[aria-label='{label}'] tbody tr")


# --- activity in a cluster --------------------------------------------------------------------------------------------

LINES = b"".join(b"line %040d\n" % number for number in range(1_000))
PAYLOAD_BYTES = len(LINES) - LINES.count(b"\n")
BATCHED_BYTES = PAYLOAD_BYTES + LINES.count(b"\n") * BATCH_TABLE_ROW_BYTES
"""Of all lines in batches, but for the headers of those."""


def closed_ledger(up, ensemble: int = 1, times: int = 1) -> int:
    """A ledger with ``times`` so many lines. Commands make it, so it may be made beside a browser."""
    ledger = up("ledger", "create", "--ensemble", ensemble, "--json").json["ledger_id"]
    assert up("ledger", "append", ledger, "--close", stdin=LINES * times).code == 0
    return ledger


def archiving(cli, metadata: str, bucket: Path, log: Path):
    """An offloader, as long as the block lasts: closed ledgers are archived at once, in this directory."""
    bucket.mkdir()
    at_once = {"max_set_wait_s": 0, "deletion_lag_s": 0, "interval_s": 1, "retry_s": 1}
    words = ["offload", "run", "--metadata", metadata, "--archive", f"file://{bucket}", *_settings(at_once)]
    return running(cli, *words, log=log)


def lose_a_bookie(up, ledgers: list[int]) -> None:
    """Kill a bookie that all of these name. Of three ledgers on three of four bookies each, there is such a one."""
    named = [_members(up, ledger) for ledger in ledgers]
    lost = min(set.intersection(*named))
    os.kill(up.run_file(int(lost.removeprefix("bookie-")))["pid"], signal.SIGKILL)


def _members(up, ledger: int) -> set[str]:
    fragments = up("ledger", "info", ledger, "--json").json["fragments"]
    return {name for fragment in fragments for name in fragment["bookies"]}


def repairing(cli, metadata: str, log: Path):
    """A repair, as long as the block lasts: it begins at once, goes slowly, and says often how far it is."""
    slowly = {"lost_after_s": 1, "interval_s": 1, "lease_s": 1, "check_period_s": 0, "concurrent_ledgers": 1,
              "bytes_per_second": "1MB"}  # fmt: skip
    return running(cli, "repair", "run", "--metadata", metadata, *_settings(slowly), log=log)


def _settings(chosen: dict[str, object]) -> list[str]:
    return [word for name, value in chosen.items() for word in ("--set", f"{name}={value}")]
