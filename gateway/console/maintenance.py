"""Endpoints on the cluster as a whole: overview, diagnosis, auditor, repair tasks, offloader, console settings."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable
from typing import Final

from tallybook.client.client import Client
from tallybook.core.errors import DamagedFile, InvalidArgument, NewerFormat
from tallybook.core.settings import ConsoleSettings
from tallybook.metadata.records.update import RecordUpdater
from tallybook.repair.pause import pause, paused_since, resume
from tallybook.repair.service import age_of, repair_status
from tallybook.repair.status.report import progress_json
from tallybook.repair.task_progress import sum_progress
from tallybook.repair.tasks import PREFIX, URGENT, Task, decode_task
from tallybook.runtime.http.endpoints import EndpointRequest

from .audit_pass import AuditPassRunner
from .cluster_view import ClusterView

PAGE: Final = 100
MAX_PAGE: Final = 500
_TASK: Final = re.compile(r"[0-9a-f-]{1,64}", re.ASCII)


class ConsoleMaintenanceEndpoints:
    """The endpoints on the cluster as a whole."""

    def __init__(
        self, client: Client, view: ClusterView, settings: ConsoleSettings, audit_runner: AuditPassRunner
    ) -> None:
        self._client = client
        self._view = view
        self._settings = settings
        self._audit_runner = audit_runner

    async def overview(self, request: EndpointRequest) -> object:
        """All data of the front page."""
        return await self._view.overview()

    async def diagnosis(self, request: EndpointRequest) -> object:
        """The present bottleneck of the cluster."""
        return await self._view.diagnosis()

    async def under_replicated(self, request: EndpointRequest) -> object:
        """Under-replicated ledgers and ledgers to move: counts of the auditor's last report, and their repair tasks."""
        audit = await repair_status(self._client.world.store) or {}
        return {
            "under_replicated": audit.get("under_replicated"),
            "moving": audit.get("moving"),
            "needing": audit.get("needing"),
            "audited_s_ago": age_of(audit, self._client.world.clock),
            **await self._tasks(request, URGENT),
        }

    async def auditor(self, request: EndpointRequest) -> object:
        """The auditor, its last report, and the last audit pass run from this console."""
        status = await self._view.overview()
        audit = await repair_status(self._client.world.store)
        return {
            "auditor": status["auditor"],
            "audited_s_ago": age_of(audit, self._client.world.clock),
            "last_audit": audit,
            "round": self._audit_runner.last,
            **{key: status[key] for key in ("at_ms", "age_ms", "why")},
        }

    async def audit(self, request: EndpointRequest) -> object:
        """Start an audit pass: check all ledgers and publish repair tasks."""
        return self._audit_runner.begin()

    async def repair(self, request: EndpointRequest) -> object:
        """A page of repair tasks with their progress; urgent tasks first."""
        status = await self._view.overview()
        copies = status["copies"]
        return {
            "paused_since_ms": await paused_since(self._client.world.store),
            **await self._tasks(request, PREFIX),
            "total": copies["tasks"] if isinstance(copies, dict) else None,
        }

    async def switch(self, request: EndpointRequest) -> object:
        """Pause or resume the repair."""
        world = self._client.world
        records = RecordUpdater(world.store, world.clock, world.rng.fork("pause"))
        if request.path["switch"] == "pause":
            await pause(records, world.clock.wall_us() // 1000)
        elif request.path["switch"] == "resume":
            await resume(records)
        else:
            raise InvalidArgument("unknown switch of the repair; use pause or resume")
        return {"paused_since_ms": await paused_since(world.store)}

    async def _tasks(self, request: EndpointRequest, prefix: str) -> dict[str, object]:
        store, after = self._client.world.store, request.query.get("after", "")
        if after and _TASK.fullmatch(after) is None:
            raise InvalidArgument("after must be the name of a repair task")
        limit = request.count("limit", PAGE, MAX_PAGE) or PAGE
        page = await store.list_records(prefix, PREFIX + after if after else "", limit)
        found = [each for each in await asyncio.gather(*map(self._task, page.names)) if each is not None]
        last = page.next_after()
        following = None if last is None else last.removeprefix(PREFIX)
        urgent = [task for _, task in found if task is not None and task.urgent]
        return {
            "tasks": [row for row, _ in found],
            "next": following,
            "progress": {**_progress(urgent), "tasks": len(urgent), "complete": following is None and not after},
        }

    async def _task(self, name: str) -> tuple[dict[str, object], Task | None] | None:
        record = await self._client.world.store.read_record(name)
        if record is None:
            return None
        status: dict[str, object] = {"task": name.removeprefix(PREFIX), "unreadable": ""}
        try:
            task = decode_task(name, record.value)
        except (DamagedFile, NewerFormat) as error:
            unknown: dict[str, object] = {"ledgers": [], "why": None, "owner": None, "progress": None}
            return {**status, "unreadable": error.message, **unknown}, None
        why = task.why or "periodic check"
        row = {**status, "ledgers": list(task.ledger_ids), "why": why, "owner": task.owner or None}
        return {**row, "progress": _progress([task])}, task

    async def offload(self, request: EndpointRequest) -> object:
        """Totals of the archive and the offloader's last pass."""
        status = await self._view.overview()
        return {
            "archive": status["archive"],
            "last_round": status["offload"],
            **{key: status[key] for key in ("at_ms", "age_ms", "why", "ledgers_at_ms", "ledgers_age_ms")},
        }

    async def config(self, request: EndpointRequest) -> object:
        """The settings of this console."""
        return self._settings.model_dump(mode="json")


def _progress(tasks: Iterable[Task]) -> dict[str, object]:
    """Summed progress of repair tasks, and the ledgers left."""
    found = list(tasks)
    left = sum(len(task.ledger_ids) for task in found)
    return {"ledgers_left": left, **progress_json(sum_progress(task.progress for task in found))}
