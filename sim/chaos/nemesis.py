"""Plans faults of a chaos run from a seed, and injects them.

A plan is a list of strikes. Their kinds come from a shuffled deck, so that every kind occurs about every minute; the
first three are always a kill, a stop and a cut, so that even a short run has them. At most two bookies are in trouble
at the same time, except for strikes against all.
"""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

from tallybook.bench.equipment.zookeeper_server import ZooKeeperServer
from tallybook.runtime.clock import Clock
from tallybook.runtime.rng import Rng
from tallybook.runtime.tasks import Tasks, ThreadWorkers

from .processes import BookieProcess, ChildProcess
from .proxy import BOTH, Direction, TcpProxy

FIRST: Final = ("kill", "stop", "cut")
DECK: Final = {
    "kill": 5,
    "kill_while_starting": 1,
    "kill_all": 1,
    "kill_load": 1,
    "stop": 3,
    "stop_load": 1,
    "cut": 2,
    "cut_there": 1,
    "cut_back": 1,
    "refuse": 1,
    "delay": 2,
    "store_cut": 1,
    "store_stop": 1,
}
RARE: Final = {"store_cut_all": 1, "store_kill": 1}
"""Only in every third deck, because they stop all clients."""

MEAN_PAUSE_SECONDS: Final = 1.5
MAX_IN_TROUBLE: Final = 2
SESSION_SECONDS: Final = 10.0
"""ZooKeeper session timeout of a bookie: a longer cut expires the session."""

START_SECONDS: Final = 2.0
"""Assumed start time of a bookie in the plan."""


@dataclass(frozen=True, slots=True)
class Strike:
    """A fault of this kind, ``at`` so many seconds into the run, for ``seconds``."""

    at: float
    kind: str
    target: int
    """Number of the bookie or load; -1 for all."""
    seconds: float

    def __str__(self) -> str:
        return f"{self.kind} {'all' if self.target < 0 else self.target} for {self.seconds:.2f} s"


def plan(rng: Rng, seconds: float, bookies: int, loads: int) -> list[Strike]:
    """Plan all strikes within ``seconds``."""
    strikes: list[Strike] = []
    troubled_until = [0.0] * bookies
    at, kinds, decks = 0.5, list(FIRST), 0
    while at < seconds:
        if not kinds:
            decks += 1
            deck = {**DECK, **(RARE if decks % 3 == 2 else {})}
            kinds = rng.shuffled([kind for kind, count in deck.items() for _ in range(count)])
        kind = kinds.pop()
        lasts = min(_seconds(kind, rng), seconds - at)
        if kind in ("kill_all", "store_stop", "store_kill", "store_cut_all"):
            target = -1
        elif kind.endswith("_load"):
            target = rng.randint(0, loads - 1)
        else:
            target = _bookie(rng, at, troubled_until)
            troubled_until[target] = at + lasts + (START_SECONDS if kind.startswith("kill") else 0)
        strikes.append(Strike(at, kind, target, lasts))
        at += 2 * MEAN_PAUSE_SECONDS * rng.random()
        calm = sorted(troubled_until)[-MAX_IN_TROUBLE] if bookies > MAX_IN_TROUBLE else at
        at = max(at, min(calm, at + 4.0))
    return strikes


def _seconds(kind: str, rng: Rng) -> float:
    if kind == "store_cut_all" or (kind == "store_cut" and rng.random() < 0.5):
        return SESSION_SECONDS + 1 + 2 * rng.random()
    if kind.startswith("kill"):
        return 2 * rng.random() ** 2
    if kind == "stop" and rng.random() < 0.1:
        return 8 + 7 * rng.random()
    return 0.1 + 5 * rng.random() ** 2


def _bookie(rng: Rng, at: float, troubled_until: Sequence[float]) -> int:
    """Draw a bookie, one without trouble if there is any."""
    well = [number for number, until in enumerate(troubled_until) if until <= at]
    among = well or list(range(len(troubled_until)))
    return among[rng.randint(0, len(among) - 1)]


class ChaosNemesis:
    """Executes a plan.

    Args:
        load_proxies: proxies between the loads and ZooKeeper.
        say: called with a line for every strike.
    """

    def __init__(
        self,
        bookies: Sequence[BookieProcess],
        loads: Sequence[ChildProcess],
        load_proxies: Sequence[TcpProxy],
        server: ZooKeeperServer,
        clock: Clock,
        rng: Rng,
        say: Callable[[str], None],
    ) -> None:
        self.struck: Counter[str] = Counter()
        """Counts of faults that took effect: kills, stops, cuts, ..."""
        self._bookies = bookies
        self._loads = loads
        self._load_proxies = load_proxies
        self._server = server
        self._clock = clock
        self._rng = rng
        self._say = say
        self._threads = ThreadWorkers(1, "zookeeper")
        self._store_busy = asyncio.Lock()

    async def run(self, strikes: Sequence[Strike], tasks: Tasks) -> None:
        """Execute each strike at its time; return when all have ended."""
        began = self._clock.monotonic()
        running: list[asyncio.Task[None]] = []
        for strike in strikes:
            await self._clock.sleep(max(0.0, began + strike.at - self._clock.monotonic()))
            self._say(str(strike))
            running.append(tasks.spawn(self._strike(strike), name=strike.kind))
        await asyncio.gather(*running)

    async def close(self) -> None:
        """Stop the thread that starts and kills ZooKeeper."""
        await self._threads.close()

    async def _strike(self, strike: Strike) -> None:
        doings: dict[str, Callable[[Strike], Awaitable[None]]] = {
            "kill": self._kill,
            "kill_while_starting": self._kill_while_starting,
            "kill_all": self._kill_all,
            "kill_load": self._kill_load,
            "stop": lambda strike: self._stop(self._bookies[strike.target].child, strike),
            "stop_load": lambda strike: self._stop(self._loads[strike.target], strike),
            "delay": self._delay,
            "refuse": self._refuse,
            "store_cut": self._cut_from_store,
            "store_cut_all": self._cut_all_from_store,
            "store_stop": self._stop_store,
            "store_kill": self._kill_store,
        }
        await doings.get(strike.kind, self._cut)(strike)

    # -- processes ------------------------------------------------------------------------

    async def _kill(self, strike: Strike) -> None:
        self.struck["kills"] += await self._bookies[strike.target].kill(strike.seconds)

    async def _kill_while_starting(self, strike: Strike) -> None:
        bookie = self._bookies[strike.target]
        await self._kill(strike)
        starts = bookie.starts
        while bookie.starts == starts:
            await self._clock.sleep(0.02)
        await self._clock.sleep(2 * self._rng.random())
        await self._kill(strike)

    async def _kill_all(self, strike: Strike) -> None:
        self.struck["kills of all"] += 1
        killed = await asyncio.gather(*(bookie.kill(strike.seconds) for bookie in self._bookies))
        self.struck["kills"] += sum(killed)

    async def _kill_load(self, strike: Strike) -> None:
        killed = await self._loads[strike.target].kill()
        self.struck["kills"] += killed
        self.struck["kills of clients"] += killed

    async def _stop(self, child: ChildProcess, strike: Strike) -> None:
        self.struck["stops"] += child.signal(signal.SIGSTOP)
        await self._clock.sleep(strike.seconds)
        child.signal(signal.SIGCONT)

    # -- the network ----------------------------------------------------------------------

    async def _cut(self, strike: Strike) -> None:
        ways = {"cut_there": (Direction.THERE,), "cut_back": (Direction.BACK,)}.get(strike.kind, BOTH)
        await self._hold((self._bookies[strike.target].proxy,), ways, strike.seconds)

    async def _hold(self, proxies: Sequence[TcpProxy], ways: tuple[Direction, ...], seconds: float) -> None:
        """Block these proxies for a while; half of them then reset their connections."""
        self.struck["cuts"] += 1
        for proxy in proxies:
            proxy.hold(*ways)
        await self._clock.sleep(seconds)
        for proxy in proxies:
            if self._rng.random() < 0.5:
                await proxy.reset()
            proxy.heal()

    async def _refuse(self, strike: Strike) -> None:
        self.struck["cuts"] += 1
        proxy = self._bookies[strike.target].proxy
        await proxy.refuse()
        await self._clock.sleep(strike.seconds)
        proxy.heal()

    async def _delay(self, strike: Strike) -> None:
        self.struck["delays"] += 1
        proxy = self._bookies[strike.target].proxy
        for way in BOTH:
            if self._rng.random() < 0.7:
                proxy.delay(0.01 + self._rng.random() ** 2, way)
        await self._clock.sleep(strike.seconds)
        proxy.heal()

    # -- ZooKeeper ------------------------------------------------------------------------

    async def _cut_from_store(self, strike: Strike) -> None:
        await self._hold((self._bookies[strike.target].store_proxy,), BOTH, strike.seconds)

    async def _cut_all_from_store(self, strike: Strike) -> None:
        proxies = [*(bookie.store_proxy for bookie in self._bookies), *self._load_proxies]
        await self._hold(proxies, BOTH, strike.seconds)

    async def _stop_store(self, strike: Strike) -> None:
        async with self._store_busy:
            self.struck["stops"] += 1
            self._server.pause()
            await self._clock.sleep(strike.seconds)
            self._server.resume()

    async def _kill_store(self, strike: Strike) -> None:
        async with self._store_busy:
            self.struck["kills"] += 1
            self.struck["kills of ZooKeeper"] += 1
            await self._threads.run(self._server.kill)
            await self._clock.sleep(strike.seconds)
            await self._threads.run(self._server.start)
