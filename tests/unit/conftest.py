"""Fixtures for tests of the blocking APIs: a blocking client on in-memory bookies, and simulated Ctrl-C."""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from tallybook.client.sync import Client, ClientSettings
from tallybook.runtime.clock import RealClock
from tallybook.runtime.rng import SeededRng
from tallybook.stream.sync import StreamStore

from ..support.memory_cluster import MemoryCluster

SMALL = ClientSettings(max_batch_bytes=4096, max_in_flight_batches=4, max_pending_bytes=256 * 1024, tail_wait_ms=200)


class Stage:
    """Three in-memory bookies on the loop of a blocking client."""

    def __init__(self) -> None:
        self.cluster = MemoryCluster(SimpleNamespace(clock=RealClock(), rng=SeededRng(1)), bookies=3)  # type: ignore[arg-type]
        self.client = self.another()

    def another(self) -> Client:
        """Another client, to be used on the same loop or only closed."""
        return Client(self.cluster.client()._cluster, SMALL)

    def hold(self) -> None:
        """Withhold all acks."""
        self._each(lambda bookie: bookie.hold_commits())

    def release(self) -> None:
        """Send acks again."""
        self._each(lambda bookie: bookie.release_commits())

    def _each(self, change: Callable[[Any], None]) -> None:
        self.call(lambda: [change(bookie) for bookie in self.cluster.bookies.values()])

    def call(self, function: Callable[[], Any]) -> Any:
        """Call a function on the loop."""
        return self.client._loop.call(function)

    def keep_busy(self) -> None:
        """Let the loop do nothing for a while, so that calls from here gather."""
        self.client._loop.call_soon(time.sleep, 0.05)

    def tasks(self) -> int:
        """Number of running tasks of the client."""
        return self.call(lambda: len(self.client._engine._tasks._running))


@pytest.fixture
def stage() -> Iterator[Stage]:
    stage = Stage()
    with stage.client as client:
        client._loop.run(stage.cluster.start())
        yield stage
        if not client._loop.closed:
            for end in reversed(client._close_callbacks):
                client._loop.run(end())
            client._loop.run(client._engine.close())
            client._loop.run(stage.cluster.stop())


@pytest.fixture
def interrupted_while() -> Iterator[Callable[[Callable[[], object]], None]]:
    """``interrupted_while(call)`` interrupts the call while it waits, as Ctrl-C does."""

    def handler(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGUSR1, handler)

    def interrupt_it(call: Callable[[], object]) -> None:
        stop = threading.Event()

        def interrupt() -> None:
            # Repeat until it takes effect: a signal just before a thread starts to wait does not wake it.
            stop.wait(0.1)
            while not stop.wait(0.05):
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

        with ThreadPoolExecutor(1) as other:
            other.submit(interrupt)
            try:
                call()
                pytest.fail("the call ended without an interrupt")
            except KeyboardInterrupt:
                stop.set()
            finally:
                stop.set()

    yield interrupt_it
    signal.signal(signal.SIGUSR1, before)


@pytest.fixture
def streams(stage: Stage) -> Iterator[StreamStore]:
    """The streams of the stage."""
    with StreamStore(stage.client) as streams:
        yield streams
