"""One run: start everything, let it go wrong, heal, close, audit.

    start    ZooKeeper, bookies and loads, every connection through a proxy
    chaos    the nemesis strikes; whoever is killed is started again
    heal     nothing goes wrong any more: every bookie serves, every load comes to its end
    close    a new ledger can be written; every open one can be recovered
    audit    two clients read everything, every copy is looked at, and the history is checked

What has to happen after healing has a deadline, which is generous: a slow machine is no
violation.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Self

from tallybook.bench.payloads import LEAST_BYTES, Payloads
from tallybook.bench.zookeeper_server import ZooKeeperServer
from tallybook.cli.launcher import how_it_ended
from tallybook.client.client import Client
from tallybook.client.world import open_world
from tallybook.core.errors import TallybookError
from tallybook.runtime.clock import RealClock
from tallybook.runtime.rng import SeededRng
from tallybook.runtime.tasks import Tasks, ThreadWorkers

from ..history import End, History, Kind, Outcome, Violation, check
from .audit import RETRY_SECONDS, Auditor, close_all, count_copies, keep_promises, look_at_lacs, read_all
from .load import CANNOT_OPEN, client_settings
from .nemesis import Nemesis, Strike, plan
from .processes import BookieProcess, Child
from .proxy import Proxy
from .records import Promises, replay
from .watched import WatchedConnections

BOOKIES: Final = 5
LOADS: Final = 2
ROOT_NODE: Final = "/chaos"
DEADLINE_SECONDS: Final = 120.0
"""For each thing that has to happen once nothing goes wrong any more."""

POLL_SECONDS: Final = 0.05

MOST_SHOWN: Final = 30
"""So many violations are printed: one entry that is lost seldom is alone."""

Say = Callable[[str], None]


class Chaos:
    """A run in ``directory``. Use it in ``async with``: leaving ends every process.

    Args:
        say: told, line by line, what happens.
    """

    def __init__(self, directory: Path, seed: int, say: Say) -> None:
        self.violations: list[Violation] = []
        self.figures: Counter[str] = Counter()
        self._directory = directory
        self._seed = seed
        self._say = say
        self._rng = SeededRng(seed)
        self._clock = RealClock()
        self._began = self._clock.monotonic()
        self._tasks = Tasks("chaos", lambda name, error: self._wrong("chaos", -1, f"{name}: {error!r}"))
        self._undo = AsyncExitStack()
        self._threads = ThreadWorkers(1, "history")
        self._life: tuple[int, int] = os.pipe()
        self._server = ZooKeeperServer(directory / "zookeeper")
        self._bookies: list[BookieProcess] = []
        self._loads: list[Child] = []
        self._load_proxies: list[Proxy] = []
        self._logs: list[Path] = []
        self._over = False

    async def __aenter__(self) -> Self:
        for end in self._life:
            self._undo.callback(os.close, end)
        self._undo.push_async_callback(self._threads.close)
        self._undo.push_async_callback(self._tasks.close)
        self._undo.push_async_callback(self._kill_all)
        self._undo.enter_context(self._server)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._undo.aclose()

    async def run(self, seconds: float) -> None:
        """All phases; what went wrong is in ``violations``."""
        await self._start()
        nemesis = Nemesis(
            self._bookies, self._loads, self._load_proxies, self._server, self._clock, self._rng.fork("strikes"),
            self._tell,
        )  # fmt: skip
        self._undo.push_async_callback(nemesis.close)
        self._tell("chaos begins")
        await nemesis.run(self._plan(seconds), self._tasks)
        self.figures.update(nemesis.struck)
        self._tell("healed")
        await self._until(self._all_ready, "every bookie serves")
        await self._end_loads()
        await self._audit()

    def _plan(self, seconds: float) -> list[Strike]:
        return plan(self._rng.fork("plan"), seconds, BOOKIES, LOADS)

    def _tell(self, text: str) -> None:
        self._say(f"{self._clock.monotonic() - self._began:7.2f} s  {text}")

    def _wrong(self, invariant: str, ledger_id: int, detail: str) -> None:
        violation = Violation(invariant, ledger_id, detail)
        self.violations.append(violation)
        if len(self.violations) <= MOST_SHOWN:
            self._tell(f"VIOLATION {violation}")

    # -- start ----------------------------------------------------------------------------

    async def _start(self) -> None:
        for number in range(BOOKIES):
            child = self._child(f"b{number}")
            bookie = BookieProcess(
                child, self._directory / child.name, ROOT_NODE, await self._proxy(None),
                await self._proxy(self._server.address), self._clock,
                lambda detail: self._wrong("fail-safe", -1, detail),
            )  # fmt: skip
            self._bookies.append(bookie)
            self._spawn(bookie.keep(), child.name)
        await self._until(self._all_ready, "every bookie serves")
        for number in range(LOADS):
            child, proxy = self._child(f"load{number}"), await self._proxy(self._server.address)
            self._loads.append(child)
            self._load_proxies.append(proxy)
            self._spawn(self._keep(child, proxy), child.name)

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Run what keeps a process running: if it fails itself, the run proves nothing."""

        def ended(task: asyncio.Task[None]) -> None:
            if not task.cancelled() and (error := task.exception()) is not None:
                self._wrong("chaos", -1, f"{name}: {error!r}")

        self._tasks.spawn(work, name=name).add_done_callback(ended)

    def _child(self, name: str) -> Child:
        return Child(name, self._life[0], self._directory / f"{name}.log")

    async def _proxy(self, target: str | None) -> Proxy:
        proxy = Proxy(self._clock, self._tasks)
        proxy.target = target
        await proxy.start()
        self._undo.push_async_callback(proxy.close)
        return proxy

    async def _keep(self, child: Child, proxy: Proxy) -> None:
        """Run a load, and another one whenever it was killed."""
        lives = 0
        while not self._over:
            log = self._directory / f"{child.name}.{lives}.jsonl"
            self._logs.append(log)
            words = ["tallybook.sim.chaos", "load", "--name", f"{child.name}.{lives}", "--log", str(log)]
            words += ["--metadata", f"zk://{proxy.address}{ROOT_NODE}", "--seed", f"{self._seed}/{child.name}/{lives}"]
            await child.spawn(*words)
            lives += 1
            code = await child.ended()
            # While ZooKeeper cannot be reached, a client cannot be opened.
            if code not in (0, -signal.SIGKILL, CANNOT_OPEN):
                self._wrong("client", -1, f"{log.stem} {how_it_ended(code)}: {child.last_words()}")

    # -- heal -----------------------------------------------------------------------------

    def _all_ready(self) -> bool:
        return all(bookie.ready for bookie in self._bookies)

    async def _until(self, condition: Callable[[], bool], what: str) -> None:
        deadline = self._clock.monotonic() + DEADLINE_SECONDS
        while not condition():
            if self._clock.monotonic() > deadline:
                self._wrong("L0", -1, f"not within {DEADLINE_SECONDS:.0f} s: {what}")
                return
            await self._clock.sleep(POLL_SECONDS)

    async def _end_loads(self) -> None:
        """Let every load finish what it has begun."""
        self._over = True
        for child in self._loads:
            child.signal(signal.SIGTERM)
        deadline = self._clock.monotonic() + DEADLINE_SECONDS
        for child in self._loads:
            try:
                async with asyncio.timeout(max(0.0, deadline - self._clock.monotonic())):
                    await child.ended()
            except TimeoutError:
                # Its log shows then what every task waits for.
                child.signal(signal.SIGUSR1)
                await self._clock.sleep(1.0)
                self._wrong("L2", -1, f"{child.name} does not come to its end, see {child.log}")
                await child.kill()
        self._tell("loads ended")

    # -- close and audit ------------------------------------------------------------------

    async def _audit(self) -> None:
        history, payloads, promises = History(), Payloads(), Promises()
        # On a thread: without its proxies the cluster would be cut off for as long as this takes.
        for violation in await self._threads.run(self._replay, history, payloads, promises):
            self._wrong(*violation)
        self._tell("logs read")
        async with self._auditor("auditor-1", promises) as one, self._auditor("auditor-2", promises) as other:
            await self._write_one(one, history, payloads)
            known = await close_all(one, history, self._clock, DEADLINE_SECONDS, self._wrong)
            self._tell(f"{len(known)} ledgers closed")
            await asyncio.gather(*(read_all(each, known, history, payloads, self._wrong) for each in (one, other)))
            self._tell("everything read twice")
            self.figures["ensemble changes"] = await count_copies(one, known, self._wrong)
            await keep_promises(one, promises, self._wrong)
            await look_at_lacs(one, known, history, promises, self._wrong)
            self._tell("every copy looked at")
        for violation in await self._threads.run(check, history):
            self._wrong(*violation)
        self._count(history, known, promises)
        await self._stop_bookies()

    def _replay(self, history: History, payloads: Payloads, promises: Promises) -> list[Violation]:
        logs = [log for log in self._logs if log.exists()]
        return [violation for log in logs for violation in replay(log, history, payloads, promises)]

    @asynccontextmanager
    async def _auditor(self, name: str, promises: Promises) -> AsyncIterator[Auditor]:
        settings = client_settings()
        opened = await open_world(f"zk://{self._server.address}{ROOT_NODE}", settings)
        world = replace(opened, connections=WatchedConnections(opened.connections, promises.note))
        async with Client(world, settings) as client:
            yield Auditor(name, client, world)

    async def _write_one(self, auditor: Auditor, history: History, payloads: Payloads) -> None:
        """A new writer gets on, now that everything is well."""
        deadline = self._clock.monotonic() + DEADLINE_SECONDS
        while True:
            try:
                ledger = await auditor.client.create_ledger(ack_quorum=3)
                payload = payloads.of(ledger.id, 0, LEAST_BYTES)
                append = history.append(auditor.name, ledger.id, payload)
                append.ok(entry_id=await ledger.append(payload))
                closed = await ledger.close()
            except TallybookError as error:
                if self._clock.monotonic() > deadline:
                    self._wrong("L2", -1, f"a new ledger cannot be written and closed: {error!r}")
                    return
                await self._clock.sleep(RETRY_SECONDS)
            else:
                history.close(auditor.name, ledger.id).ok(end=End(closed.last_entry_id, closed.length))
                return

    def _count(self, history: History, known: list[int], promises: Promises) -> None:
        ended = Counter(operation.kind for operation in history.operations if operation.outcome is Outcome.OK)
        self.figures["ledgers"] = len(known)
        self.figures["acked entries"] = ended[Kind.APPEND]
        self.figures["acked batches"] = sum(map(len, promises.acked.values()))
        self.figures["closes"] = ended[Kind.CLOSE]
        self.figures["recoveries"] = ended[Kind.RECOVER]
        self.figures["readings"] = len(history.readings)
        self.figures["bookie starts"] = sum(bookie.starts for bookie in self._bookies)
        self.figures["violations"] = len(self.violations)

    async def _stop_bookies(self) -> None:
        """Each ends cleanly, having gone through everything."""
        for bookie, code in zip(
            self._bookies, await asyncio.gather(*(bookie.stop() for bookie in self._bookies)), strict=True
        ):
            if code != 0:
                self._wrong("fail-safe", -1, f"{bookie.name} {how_it_ended(code)}, told to stop")

    async def _kill_all(self) -> None:
        """Leave no process behind."""
        self._over = True
        for load in self._loads:
            await load.kill()
        for bookie in self._bookies:
            await bookie.end()
