"""A round of an auditor on demand, as ``tallybook cluster audit`` makes it: one at a time, and beside all requests."""

from __future__ import annotations

import asyncio

from tallybook.client.client import Client
from tallybook.core.config import RepairSettings
from tallybook.core.errors import Busy, TallybookError
from tallybook.repair.one_round import OneRound
from tallybook.repair.service import told
from tallybook.runtime.logging import logger
from tallybook.runtime.tasks import Tasks

_log = logger("console")


class Auditing:
    """The rounds that were asked for here."""

    def __init__(self, client: Client, tasks: Tasks) -> None:
        self._client = client
        self._tasks = tasks
        self._running: asyncio.Task[None] | None = None
        self._told: dict[str, object] | None = None

    def begin(self) -> dict[str, object]:
        """Begin a round.

        Raises:
            Busy: one is under way.
        """
        if self._running is not None and not self._running.done():
            raise Busy("a round that was asked for here is under way", retry_after_ms=5_000)
        began_ms = self._now_ms()
        self._told = {"began_ms": began_ms, "ended_ms": None, "found": None, "why": ""}
        self._running = self._tasks.spawn(self._round(began_ms), name="audit", apart=True)
        return self._told

    @property
    def told(self) -> dict[str, object] | None:
        """Of the last one, since when it goes on, or what it found; ``None``: there was none."""
        return self._told

    async def _round(self, began_ms: int) -> None:
        found: dict[str, object] | None = None
        why = ""
        try:
            one_round = OneRound(self._client, RepairSettings())
            found = {**told(await one_round.audit()), "tasks_handed_out": one_round.published}
        except TallybookError as error:
            _log.warning("a round of an auditor has failed", error=error.message)
            why = error.message
        except Exception as error:  # noqa: BLE001 - whoever asked for it is told
            _log.error("a round of an auditor has failed", error=repr(error))
            why = f"the round has failed: {error!r}"
        self._told = {"began_ms": began_ms, "ended_ms": self._now_ms(), "found": found, "why": why}

    def _now_ms(self) -> int:
        return self._client.world.clock.wall_us() // 1000
