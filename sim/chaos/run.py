"""Phases of one chaos run.

    start    ZooKeeper, bookies and loads, with a proxy in every connection
    chaos    the nemesis strikes; killed processes restart
    heal     faults end: every bookie serves, every load finishes
    close    a new ledger can be written; every open one can be recovered
    audit    two clients read everything, every copy is checked, and the history is checked

Everything that must happen after healing has a generous deadline, so that a slow machine is no violation.
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

from tallybook.bench.equipment.zookeeper_server import ZooKeeperServer
from tallybook.bench.loads.payloads import MIN_BYTES, Payloads
from tallybook.cli.local.launcher import how_it_ended
from tallybook.client.client import Client
from tallybook.client.environment import open_world
from tallybook.core.errors import TallybookError
from tallybook.runtime.clock import RealClock
from tallybook.runtime.rng import SeededRng
from tallybook.runtime.tasks import Tasks, ThreadWorkers

from ..workload.history import History, LedgerEnd, OperationKind, OperationOutcome, Violation, check
from .audit import RETRY_SECONDS, AuditClient, check_lacs, close_all, count_copies, keep_promises, read_all
from .load import CANNOT_OPEN, client_settings
from .nemesis import ChaosNemesis, Strike, plan
from .processes import BookieProcess, ChildProcess
from .proxy import TcpProxy
from .records import BookiePromises, replay
from .watched import WatchedConnections

BOOKIES: Final = 5
LOADS: Final = 2
ROOT_NODE: Final = "/chaos"
DEADLINE_SECONDS: Final = 120.0
"""Deadline of each step after healing."""

POLL_SECONDS: Final = 0.05

MAX_SHOWN: Final = 30
"""Maximum number of printed violations; one cause often has many."""


class ChaosRun:
    """A run in ``directory``. Use it in ``async with``: leaving ends every process.

    Args:
        say: called with each line of progress.
    """

    def __init__(self, directory: Path, seed: int, say: Callable[[str], None]) -> None:
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
        self._loads: list[ChildProcess] = []
        self._load_proxies: list[TcpProxy] = []
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
        """Run all phases; violations are in ``violations``."""
        await self._start()
        nemesis = ChaosNemesis(
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
        if len(self.violations) <= MAX_SHOWN:
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
        """Run the supervisor of a process; its failure is a violation, because the run would prove nothing."""

        def ended(task: asyncio.Task[None]) -> None:
            if not task.cancelled() and (error := task.exception()) is not None:
                self._wrong("chaos", -1, f"{name}: {error!r}")

        self._tasks.spawn(work, name=name).add_done_callback(ended)

    def _child(self, name: str) -> ChildProcess:
        return ChildProcess(name, self._life[0], self._directory / f"{name}.log")

    async def _proxy(self, target: str | None) -> TcpProxy:
        proxy = TcpProxy(self._clock, self._tasks)
        proxy.target = target
        await proxy.start()
        self._undo.push_async_callback(proxy.close)
        return proxy

    async def _keep(self, child: ChildProcess, proxy: TcpProxy) -> None:
        """Run a load, and restart it whenever it ends."""
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
        """Stop the loads, which first finish what they have begun."""
        self._over = True
        for child in self._loads:
            child.signal(signal.SIGTERM)
        deadline = self._clock.monotonic() + DEADLINE_SECONDS
        for child in self._loads:
            try:
                async with asyncio.timeout(max(0.0, deadline - self._clock.monotonic())):
                    await child.ended()
            except TimeoutError:
                # SIGUSR1 makes it log where every task waits.
                child.signal(signal.SIGUSR1)
                await self._clock.sleep(1.0)
                self._wrong("L2", -1, f"{child.name} does not end after SIGTERM, see {child.log}")
                await child.kill()
        self._tell("loads ended")

    # -- close and audit ------------------------------------------------------------------

    async def _audit(self) -> None:
        history, payloads, promises = History(), Payloads(), BookiePromises()
        # In a thread: the proxies run in this loop, and the cluster would be disconnected meanwhile.
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
            await check_lacs(one, known, history, promises, self._wrong)
            self._tell("every copy looked at")
        for violation in await self._threads.run(check, history):
            self._wrong(*violation)
        self._count(history, known, promises)
        await self._stop_bookies()

    def _replay(self, history: History, payloads: Payloads, promises: BookiePromises) -> list[Violation]:
        logs = [log for log in self._logs if log.exists()]
        return [violation for log in logs for violation in replay(log, history, payloads, promises)]

    @asynccontextmanager
    async def _auditor(self, name: str, promises: BookiePromises) -> AsyncIterator[AuditClient]:
        settings = client_settings()
        opened = await open_world(f"zk://{self._server.address}{ROOT_NODE}", settings)
        world = replace(opened, connections=WatchedConnections(opened.connections, promises.note))
        async with Client(world, settings) as client:
            yield AuditClient(name, client, world)

    async def _write_one(self, auditor: AuditClient, history: History, payloads: Payloads) -> None:
        """Write and close a new ledger (L2)."""
        deadline = self._clock.monotonic() + DEADLINE_SECONDS
        while True:
            try:
                ledger = await auditor.client.create_ledger(ack_quorum=3)
                payload = payloads.of(ledger.id, 0, MIN_BYTES)
                append = history.append(auditor.name, ledger.id, payload)
                append.ok(entry_id=await ledger.append(payload))
                closed = await ledger.close()
            except TallybookError as error:
                if self._clock.monotonic() > deadline:
                    self._wrong("L2", -1, f"a new ledger cannot be written and closed: {error!r}")
                    return
                await self._clock.sleep(RETRY_SECONDS)
            else:
                history.close(auditor.name, ledger.id).ok(end=LedgerEnd(closed.last_entry_id, closed.length))
                return

    def _count(self, history: History, known: list[int], promises: BookiePromises) -> None:
        ended = Counter(operation.kind for operation in history.operations if operation.outcome is OperationOutcome.OK)
        self.figures["ledgers"] = len(known)
        self.figures["acked entries"] = ended[OperationKind.APPEND]
        self.figures["acked batches"] = sum(map(len, promises.acked.values()))
        self.figures["closes"] = ended[OperationKind.CLOSE]
        self.figures["recoveries"] = ended[OperationKind.RECOVER]
        self.figures["readings"] = len(history.readings)
        self.figures["bookie starts"] = sum(bookie.starts for bookie in self._bookies)
        self.figures["violations"] = len(self.violations)

    async def _stop_bookies(self) -> None:
        """Stop all bookies; each must exit with 0."""
        for bookie, code in zip(
            self._bookies, await asyncio.gather(*(bookie.stop() for bookie in self._bookies)), strict=True
        ):
            if code != 0:
                self._wrong("fail-safe", -1, f"{bookie.name} {how_it_ended(code)} after SIGTERM")

    async def _kill_all(self) -> None:
        """Kill all loads and bookies."""
        self._over = True
        for load in self._loads:
            await load.kill()
        for bookie in self._bookies:
            await bookie.end()
