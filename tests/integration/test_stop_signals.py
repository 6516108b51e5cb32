"""A bookie is stopped at many moments from its first instruction to its exit, mostly under load.

At any moment, the bookie ends soon with the right exit code, the next one starts on the same directory, and every
confirmed entry is there. Moments are events that are visible from outside: files and locks.
"""

import asyncio
import fcntl
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tallybook.client.client import Client
from tallybook.client.writer.handle import LedgerWriter
from tallybook.core.errors import Busy

from ..support.waiting import until

DEADLINE_SECONDS = 60


class Node:
    """A bookie on one directory, life after life."""

    def __init__(self, start_bookie: Callable[[Path, str, str], Any], root: Path) -> None:
        self._start_bookie = start_bookie
        self.data = root / "b1"
        self.metadata = f"sqlite:///{root}/metadata.db"
        self.lives = 0
        self.bookie: Any = None
        self._before: dict[Path, int] = {}

    def start(self) -> None:
        """Begin a life."""
        self._before = {path: path.stat().st_mtime_ns for path in self.data.rglob("*")}
        self.lives += 1
        self.bookie = self._start_bookie(self.data, "b1", self.metadata)

    def alive(self) -> bool:
        return self.bookie.process.is_alive()

    def send(self, number: signal.Signals) -> None:
        os.kill(self.bookie.process.pid, number)

    async def ended(self) -> int:
        """Its exit code, soon."""
        await until(lambda: not self.alive(), "the process has ended")
        return self.bookie.process.exitcode

    # What can be seen of it.

    def locked(self) -> bool:
        """It has its directory."""
        try:
            with (self.data / "LOCK").open("rb") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except BlockingIOError:
            return True
        return False

    def touched(self, part: str) -> bool:
        """It has written a file with ``part`` in its path."""
        for path in self.data.rglob("*"):
            try:
                if part in str(path) and path.stat().st_mtime_ns != self._before.get(path):
                    return True
            except FileNotFoundError:
                continue
        return False

    def ready(self) -> bool:
        """It serves."""
        return self.bookie.ready()

    def stopping(self) -> bool:
        """It has taken back what it says of itself, which is the first thing it does when it stops."""
        return not (self.data / "run.json").exists()


def entry(life: int, number: int) -> bytes:
    """An entry that differs from every other."""
    return b"%d/%d " % (life, number) + b"." * (number * 7919 % 2_000)


class Load:
    """A writer that appends as fast as it may, and how far it was confirmed."""

    def __init__(self, writer: LedgerWriter, life: int) -> None:
        self.writer = writer
        self.life = life
        self.appended = 0

    def confirmed(self, count: int) -> Callable[[], bool]:
        return lambda: self.writer.last_add_confirmed >= count - 1

    async def write_for_ever(self) -> None:
        while True:
            try:
                self.writer.append_nowait(entry(self.life, self.appended))
            except Busy:
                await asyncio.sleep(0.001)
                continue
            self.appended += 1
            if self.appended % 100 == 0:
                await asyncio.sleep(0)


@asynccontextmanager
async def load(node: Node, confirmed: dict[int, tuple[int, int]]) -> AsyncIterator[Load]:
    """Write to a new ledger; on exit, when the bookie has ended, note what was confirmed."""
    async with Client(node.metadata) as client:
        writer = await client.create_ledger(ensemble=1, write_quorum=1, ack_quorum=1)
        running = Load(writer, node.lives)
        writing = asyncio.ensure_future(running.write_for_ever())
        try:
            yield running
        finally:
            await asyncio.sleep(0.02)  # acks that the bookie had sent count: the writer received them
            confirmed[writer.id] = (node.lives, writer.last_add_confirmed + 1)
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)


async def read_back(node: Node, confirmed: dict[int, tuple[int, int]]) -> None:
    """Everything confirmed is there, with its own bytes."""
    async with Client(node.metadata) as client:
        for ledger, (life, count) in confirmed.items():
            reader = await client.open_ledger(ledger)
            assert reader.last_add_confirmed >= count - 1, f"life {life}"
            number = 0
            if count:
                async for entries in reader.read_batches(0, count - 1):
                    for found in entries:
                        assert found.payload == entry(life, number), f"life {life}, entry {number}"
                        number += 1
            assert number >= count


Moment = Callable[[Node], Callable[[], bool]]
TERM, INT = signal.SIGTERM, signal.SIGINT

STARTING: list[tuple[str, Moment, signal.Signals]] = [
    ("spawned", lambda _: lambda: True, TERM),
    ("its directory is locked", lambda node: node.locked, INT),
    ("the journal has been replayed", lambda node: lambda: node.touched("superblock"), TERM),
    ("its segments are open", lambda node: lambda: node.touched("segment-"), INT),
    ("its index is open", lambda node: lambda: node.touched("index/"), TERM),
    ("run.json is there", lambda node: node.ready, INT),
]

Loaded = Callable[[Node, Load], Callable[[], bool]]
LOADED: list[tuple[str, Loaded, tuple[signal.Signals, ...], bool]] = [
    ("before the first ack", lambda _, load: lambda: load.appended > 0, (TERM,), False),
    ("the first ack", lambda _, load: load.confirmed(1), (INT,), False),
    ("thousands of acks", lambda _, load: load.confirmed(3_000), (TERM,), False),
    ("a checkpoint", lambda node, _: lambda: node.touched("entrylog"), (INT,), False),
    ("twice at once", lambda _, load: load.confirmed(1_000), (TERM, INT), False),
    ("once more while it stops", lambda _, load: load.confirmed(1_000), (INT, TERM), True),
]


async def stop_while_starting(node: Node, moment: Callable[[], bool], number: signal.Signals) -> None:
    await until(lambda: moment() or not node.alive(), "the moment")
    node.send(number)
    # Killed by the signal: it had not come as far as to listen to any.
    assert await node.ended() in (0, -number)


async def stop_under_load(
    node: Node, moment: Loaded, numbers: tuple[signal.Signals, ...], wait: bool, confirmed: dict
) -> None:
    await until(node.ready, "it is ready")
    async with load(node, confirmed) as running:
        await until(moment(node, running), "the moment")
        node.send(numbers[0])
        if wait:
            await until(node.stopping, "it is stopping")
        for number in numbers[1:]:
            node.send(number)
        code = await node.ended()
        # A second signal ends it at once, unless it had ended by then; of two at once either may come first.
        assert code == 0 or (len(numbers) == 2 and code in [128 + number for number in numbers])


async def test_a_signal_at_any_moment_ends_a_bookie_soon_and_nothing_confirmed_is_lost(
    start_bookie: Callable[[Path, str, str], Any], tmp_path: Path
) -> None:
    node, confirmed = Node(start_bookie, tmp_path), {}
    lives: list[Callable[[], Awaitable[None]]] = []
    for (_, early, number), (_, late, numbers, wait) in zip(STARTING, LOADED, strict=True):
        lives.append(lambda early=early, number=number: stop_while_starting(node, early(node), number))
        lives.append(lambda late=late, ns=numbers, wait=wait: stop_under_load(node, late, ns, wait, confirmed))
    try:
        for live in lives:
            node.start()
            await live()
        node.start()
        await until(node.ready, "it is ready")
        await read_back(node, confirmed)
        node.send(TERM)
        assert await node.ended() == 0
        assert len(confirmed) == len(LOADED)
        assert sum(count for _, count in confirmed.values()) > 4_000
    except BaseException as error:
        error.add_note(f"life {node.lives}, exit code {node.bookie.process.exitcode}")
        raise
    finally:
        if node.bookie is not None:
            node.bookie.kill()
