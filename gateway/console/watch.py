"""A look at a cluster that is taken again and again, beside all requests, for as long as somebody asks what it found.

Whoever asks is answered with what was found last, at once. So nobody waits for a cluster with a million ledgers, no
request that is given up ends a look, one look serves all who ask, and a console that nobody looks at asks nobody.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final, Generic, NamedTuple, TypeVar

from tallybook.core.errors import TallybookError
from tallybook.runtime.clock import Clock
from tallybook.runtime.logging import logger
from tallybook.runtime.tasks import Tasks

T = TypeVar("T")

_log = logger("console")

IDLE_SECONDS: Final = 30.0
"""Nobody has asked for so long: nobody looks."""


class Found(NamedTuple, Generic[T]):
    """What a look found."""

    what: T
    at: float
    """Monotonic second at which it began: what it found may have changed since then."""
    at_ms: int
    """The same for people."""


class Watch(Generic[T]):
    """One kind of look.

    Args:
        name: of what is looked at, for logs.
        look: takes a look.
        tasks: where it runs.
        least_seconds: between the end of a look and the next, at least.
        share: a look that took long is followed by a pause so many times as long.
    """

    def __init__(
        self,
        name: str,
        look: Callable[[], Awaitable[T]],
        clock: Clock,
        tasks: Tasks,
        *,
        least_seconds: float,
        share: float,
    ) -> None:
        self._name = name
        self._look = look
        self._clock = clock
        self._tasks = tasks
        self._least_seconds = least_seconds
        self._share = share
        self._asked_at = 0.0
        self._running: asyncio.Task[None] | None = None
        self._news = asyncio.Event()
        self.found: Found[T] | None = None
        """What was found last; ``None``: it is not known yet."""
        self.error: TallybookError | None = None
        """Why the last look found nothing, if so."""
        self.why = ""
        """The same in words, also of what is no error of Tallybook's."""

    def ask(self) -> Found[T] | None:
        """What was found last. From now on it is looked again, unless that goes on already."""
        self._asked_at = self._clock.monotonic()
        if self._running is None or self._running.done():
            self._news.clear()
            self._running = self._tasks.spawn(self._go_on(), name=f"look at {self._name}", apart=True)
        return self.found

    async def settle(self, seconds: float) -> None:
        """Ask. If nobody has looked lately, or nothing is known yet, wait for a look for so long at most."""
        idle = self._running is None or self._running.done()
        found = self.ask()
        if found is None or idle:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._news.wait()

    def known(self) -> Found[T] | None:
        """What was found last.

        Raises:
            TallybookError: nothing was ever found, and why.
        """
        if self.found is None and self.error is not None:
            raise self.error
        return self.found

    async def _go_on(self) -> None:
        while self._clock.monotonic() - self._asked_at < IDLE_SECONDS:
            began = self._clock.monotonic()
            await self._once()
            self._news.set()
            took = self._clock.monotonic() - began
            await self._clock.sleep(max(self._least_seconds, self._share * took))

    async def _once(self) -> None:
        at, at_ms = self._clock.monotonic(), self._clock.wall_us() // 1000
        try:
            what = await self._look()
        except TallybookError as error:
            _log.warning("a look found nothing", what=self._name, error=error.message)
            self.error, self.why = error, error.message
        except Exception as error:  # noqa: BLE001 - whoever looks at the console is told, and the next look may work
            _log.error("a look has failed", what=self._name, error=repr(error))
            self.error, self.why = None, f"the look has failed: {error!r}"
        else:
            self.found = Found(what, at, at_ms)
            self.error, self.why = None, ""

    def age_ms(self) -> int | None:
        """How old that is which was found last."""
        return None if self.found is None else round((self._clock.monotonic() - self.found.at) * 1000)
