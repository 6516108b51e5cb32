"""What looks after a cluster: the auditor, tasks of the repair, the offloader, and how this console is set."""

from __future__ import annotations

from typing import Final

from tallybook.client.client import Client
from tallybook.core.config import ConsoleSettings
from tallybook.core.errors import InvalidArgument
from tallybook.metadata.record_update import RecordUpdater
from tallybook.offload.status_record import last_round
from tallybook.repair.pause import pause, paused_since, resume
from tallybook.repair.service import AUDITOR_RECORD, age_of, repair_status
from tallybook.repair.tasks import PREFIX, decode_task
from tallybook.runtime.http_api import Asked

from .cluster_view import ClusterView

MOST_TASKS: Final = 100


class Upkeep:
    """What the endpoints on the cluster as a whole do."""

    def __init__(self, client: Client, view: ClusterView, settings: ConsoleSettings) -> None:
        self._client = client
        self._view = view
        self._settings = settings

    async def overview(self, asked: Asked) -> object:
        """All that the first page shows."""
        return {**(await self._view.look()).told, "diagnosis": await self._view.diagnosis()}

    async def diagnosis(self, asked: Asked) -> object:
        """What holds the cluster up."""
        return await self._view.diagnosis()

    async def under_replicated(self, asked: Asked) -> object:
        """Ledgers that lack copies: how many, by the auditor's last word, and which of them are being worked on."""
        audit = await repair_status(self._client.world.store) or {}
        return {
            "under_replicated": audit.get("under_replicated"),
            "needing": audit.get("needing"),
            "audited_s_ago": age_of(audit, self._client.world.clock),
            "tasks": await self._tasks(),
        }

    async def auditor(self, asked: Asked) -> object:
        """Who audits, and what it found last."""
        store = self._client.world.store
        audit = await repair_status(store)
        leader = await store.read_record(AUDITOR_RECORD)
        return {
            "elected": leader is not None,
            "audited_s_ago": age_of(audit, self._client.world.clock),
            "last_audit": audit,
        }

    async def repair(self, asked: Asked) -> object:
        """How far the repair is."""
        store = self._client.world.store
        return {"paused_since_ms": await paused_since(store), "tasks": await self._tasks()}

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

    async def _tasks(self) -> list[dict[str, object]]:
        store = self._client.world.store
        tasks: list[dict[str, object]] = []
        page = await store.list_records(PREFIX, "", MOST_TASKS)
        for name in page.names:
            record = await store.read_record(name)
            if record is not None:
                task = decode_task(name, record.value)
                tasks.append(
                    {
                        "task": name.removeprefix(PREFIX),
                        "ledgers": list(task.ledger_ids),
                        "why": task.why or "periodic check",
                        "owner": task.owner or None,
                    }
                )
        return tasks

    async def offload(self, asked: Asked) -> object:
        """What is in the archive, and what the offloader did last."""
        seen = await self._view.look()
        return {"archive": seen.told["archive"], "last_round": await last_round(self._client.world.store)}

    async def config(self, asked: Asked) -> object:
        """The settings of this console."""
        return self._settings.model_dump(mode="json")
