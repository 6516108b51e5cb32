"""What looks after a cluster: the auditor, tasks of the repair, the offloader, and how this console is set."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable
from typing import Final

from tallybook.client.client import Client
from tallybook.core.config import ConsoleSettings
from tallybook.core.errors import DamagedFile, InvalidArgument, NewerFormat
from tallybook.metadata.record_update import RecordUpdater
from tallybook.repair.pause import pause, paused_since, resume
from tallybook.repair.service import age_of, repair_status
from tallybook.repair.task_progress import summed
from tallybook.repair.tasks import PREFIX, URGENT, Task, decode_task
from tallybook.repair.told import progress_told
from tallybook.runtime.http_api import Asked

from .auditing import Auditing
from .cluster_view import ClusterView

PAGE: Final = 100
MOST: Final = 500
_TASK: Final = re.compile(r"[0-9a-f-]{1,64}", re.ASCII)


class Upkeep:
    """What the endpoints on the cluster as a whole do."""

    def __init__(self, client: Client, view: ClusterView, settings: ConsoleSettings, auditing: Auditing) -> None:
        self._client = client
        self._view = view
        self._settings = settings
        self._auditing = auditing

    async def overview(self, asked: Asked) -> object:
        """All that the first page shows."""
        return await self._view.overview()

    async def diagnosis(self, asked: Asked) -> object:
        """What holds the cluster up."""
        return await self._view.diagnosis()

    async def under_replicated(self, asked: Asked) -> object:
        """Ledgers that lack copies, or are to be moved: how many, by the auditor's last word, and who works at them."""
        audit = await repair_status(self._client.world.store) or {}
        return {
            "under_replicated": audit.get("under_replicated"),
            "moving": audit.get("moving"),
            "needing": audit.get("needing"),
            "audited_s_ago": age_of(audit, self._client.world.clock),
            **await self._tasks(asked, URGENT),
        }

    async def auditor(self, asked: Asked) -> object:
        """Who audits, what it found last, and of the round that was asked for here."""
        told = await self._view.overview()
        audit = await repair_status(self._client.world.store)
        return {
            "auditor": told["auditor"],
            "audited_s_ago": age_of(audit, self._client.world.clock),
            "last_audit": audit,
            "round": self._auditing.told,
            **{key: told[key] for key in ("at_ms", "age_ms", "why")},
        }

    async def audit(self, asked: Asked) -> object:
        """Look over all ledgers now, and hand out those that need repair."""
        return self._auditing.begin()

    async def repair(self, asked: Asked) -> object:
        """How far the repair is: its tasks in pages, those of what is known to be wrong first."""
        told = await self._view.overview()
        copies = told["copies"]
        return {
            "paused_since_ms": await paused_since(self._client.world.store),
            **await self._tasks(asked, PREFIX),
            "total": copies["tasks"] if isinstance(copies, dict) else None,
        }

    async def switch(self, asked: Asked) -> object:
        """Pause the repair, or let it go on."""
        world = self._client.world
        records = RecordUpdater(world.store, world.clock, world.rng.fork("pause"))
        if asked.path["switch"] == "pause":
            await pause(records, world.clock.wall_us() // 1000)
        elif asked.path["switch"] == "resume":
            await resume(records)
        else:
            raise InvalidArgument("the repair can be told: pause, resume")
        return {"paused_since_ms": await paused_since(world.store)}

    async def _tasks(self, asked: Asked, prefix: str) -> dict[str, object]:
        store, after = self._client.world.store, asked.query.get("after", "")
        if after and _TASK.fullmatch(after) is None:
            raise InvalidArgument("after must be the name of a task")
        limit = asked.count("limit", PAGE, MOST) or PAGE
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
        told: dict[str, object] = {"task": name.removeprefix(PREFIX), "unreadable": ""}
        try:
            task = decode_task(name, record.value)
        except (DamagedFile, NewerFormat) as error:
            unknown: dict[str, object] = {"ledgers": [], "why": None, "owner": None, "progress": None}
            return {**told, "unreadable": error.message, **unknown}, None
        why = task.why or "periodic check"
        row = {**told, "ledgers": list(task.ledger_ids), "why": why, "owner": task.owner or None}
        return {**row, "progress": _progress([task])}, task

    async def offload(self, asked: Asked) -> object:
        """What is in the archive, and what the offloader did last."""
        told = await self._view.overview()
        return {
            "archive": told["archive"],
            "last_round": told["offload"],
            **{key: told[key] for key in ("at_ms", "age_ms", "why", "ledgers_at_ms", "ledgers_age_ms")},
        }

    async def config(self, asked: Asked) -> object:
        """The settings of this console."""
        return self._settings.model_dump(mode="json")


def _progress(tasks: Iterable[Task]) -> dict[str, object]:
    """How far the work at these is, and what is left of it."""
    found = list(tasks)
    left = sum(len(task.ledger_ids) for task in found)
    return {"ledgers_left": left, **progress_told(summed(task.progress for task in found))}
