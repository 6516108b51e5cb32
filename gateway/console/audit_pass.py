"""Runs audit passes on demand, like ``tallybook cluster audit``: one at a time, in the background."""

from __future__ import annotations

import asyncio

from tallybook.client.client import Client
from tallybook.core.errors import Busy, TallybookError
from tallybook.core.settings import RepairSettings
from tallybook.repair.audit_pass import SingleAudit
from tallybook.repair.service import audit_json
from tallybook.runtime.logging import logger
from tallybook.runtime.tasks import Tasks

_log = logger("console")


class AuditPassRunner:
    """Runs the audit passes that this console was asked for, and keeps the result of the last one."""

    def __init__(self, client: Client, tasks: Tasks) -> None:
        self._client = client
        self._tasks = tasks
        self._running: asyncio.Task[None] | None = None
        self._last: dict[str, object] | None = None

    def begin(self) -> dict[str, object]:
        """Start an audit pass.

        Raises:
            Busy: one is running.
        """
        if self._running is not None and not self._running.done():
            raise Busy("an audit pass started from this console is still running", retry_after_ms=5_000)
        began_ms = self._now_ms()
        self._last = {"began_ms": began_ms, "ended_ms": None, "found": None, "why": ""}
        self._running = self._tasks.spawn(self._run(began_ms), name="audit", detached=True)
        return self._last

    @property
    def last(self) -> dict[str, object] | None:
        """The last audit pass: when it began and ended, and its report; ``None``: none was run."""
        return self._last

    async def _run(self, began_ms: int) -> None:
        report: dict[str, object] | None = None
        why = ""
        try:
            audit = SingleAudit(self._client, RepairSettings())
            report = {**audit_json(await audit.audit()), "tasks_handed_out": audit.published}
        except TallybookError as error:
            _log.warning("audit pass failed", error=error.message)
            why = error.message
        except Exception as error:  # noqa: BLE001 - reported by the endpoint
            _log.error("audit pass failed", error=repr(error))
            why = f"the audit pass failed: {error!r}"
        self._last = {"began_ms": began_ms, "ended_ms": self._now_ms(), "found": report, "why": why}

    def _now_ms(self) -> int:
        return self._client.world.clock.wall_us() // 1000
