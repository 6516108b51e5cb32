"""Concurrent writes to the SQLite file share a commit, and none is affected by a failure of another."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tallybook.core.errors import MetadataConflict, MetadataOutcomeUnknown
from tallybook.metadata.sqlite.database import MAX_JOBS_PER_COMMIT, Database
from tallybook.runtime.clock import RealClock
from tallybook.runtime.rng import SeededRng

DEADLINE_SECONDS = 20


class File:
    """A database whose thread can be held up, and that counts its commits."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.commits = 0
        self.gate = threading.Event()

    async def count_commits(self) -> None:
        def job(connection):
            connection.set_trace_callback(self._traced)

        await self.database.read(job)

    def _traced(self, statement: str) -> None:
        self.commits += statement == "COMMIT"

    async def put(self, name: str) -> str:
        def job(connection):
            connection.execute("INSERT INTO records (name, value, version) VALUES (?, x'00', 1)", (name,))
            return name

        return await self.database.write(job)

    async def names(self) -> set[str]:
        return await self.database.read(
            lambda connection: {name for (name,) in connection.execute("SELECT name FROM records")}
        )

    async def hold(self) -> "asyncio.Task[None]":
        """Keep its thread busy until the gate is opened; what is begun meanwhile waits."""
        begun = threading.Event()

        def job(_connection):
            begun.set()
            self.gate.wait(DEADLINE_SECONDS)

        held = asyncio.ensure_future(self.database.read(job))
        await asyncio.to_thread(begun.wait, DEADLINE_SECONDS)
        return held


def play(path: Path, scenario: Callable[[File], Awaitable[None]], timeout_seconds: float = DEADLINE_SECONDS) -> None:
    async def run() -> None:
        clock = RealClock()
        database = Database(
            str(path / "metadata.db"), create=True, clock=clock, rng=SeededRng(1), timeout_seconds=timeout_seconds
        )
        await database.open()
        file = File(database)
        await file.count_commits()
        try:
            await asyncio.wait_for(scenario(file), DEADLINE_SECONDS)
        finally:
            file.gate.set()
            await database.close()

    asyncio.run(run())


async def begun(*writes: Awaitable[str]) -> list["asyncio.Task[str]"]:
    tasks = [asyncio.ensure_future(write) for write in writes]
    await asyncio.sleep(0)
    return tasks


def test_writes_that_come_while_the_disk_is_busy_share_one_commit(tmp_path):
    async def scenario(file: File) -> None:
        held = await file.hold()
        names = [f"r{number}" for number in range(MAX_JOBS_PER_COMMIT + 1)]
        tasks = await begun(*(file.put(name) for name in names))
        file.gate.set()
        assert await asyncio.gather(*tasks) == names
        await held
        assert file.commits == 2
        assert await file.names() == set(names)

    play(tmp_path, scenario)


def test_one_that_fails_fails_alone_and_leaves_nothing(tmp_path):
    async def scenario(file: File) -> None:
        async def refused() -> str:
            def job(connection):
                connection.execute("INSERT INTO records (name, value, version) VALUES ('half', x'00', 1)")
                raise MetadataConflict("no")

            return await file.database.write(job)

        await file.put("twice")
        held = await file.hold()
        tasks = await begun(file.put("a"), refused(), file.put("twice"), file.put("b"))
        file.gate.set()
        first, conflict, twice, last = await asyncio.gather(*tasks, return_exceptions=True)
        await held
        assert (first, last) == ("a", "b")
        assert isinstance(conflict, MetadataConflict)
        assert isinstance(twice, Exception)
        assert await file.names() == {"a", "b", "twice"}

    play(tmp_path, scenario)


def test_what_was_given_up_before_it_began_never_lands(tmp_path):
    async def scenario(file: File) -> None:
        held = await file.hold()
        late, cancelled = await begun(file.put("late"), file.put("cancelled"))
        cancelled.cancel()
        with pytest.raises(MetadataOutcomeUnknown):
            await late
        file.gate.set()
        await asyncio.gather(cancelled, held, return_exceptions=True)
        assert await file.put("next") == "next"
        assert await file.names() == {"next"}

    play(tmp_path, scenario, timeout_seconds=0.5)
