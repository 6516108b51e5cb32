"""The repair of a cluster: any number of processes, of which one is the auditor, and all are replicators.

Who audits is settled through the metadata (``metadata/leader.py``). After each round the auditor writes down what it
has found, for ``tallybook cluster status`` to show from anywhere.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from typing import Final

from tallybook.client.client import Client
from tallybook.client.metrics import show_client
from tallybook.core.config import ClientSettings, RepairSettings
from tallybook.core.errors import DamagedFile, PeerError, StorageError
from tallybook.core.marks import sometimes
from tallybook.metadata.leader import Leadership
from tallybook.metadata.record_format import FIRST, check_format, over_known
from tallybook.metadata.record_json import NOT_UNDERSTOOD
from tallybook.metadata.record_update import RecordUpdater
from tallybook.metadata.store import MetadataStore
from tallybook.metadata.update import LedgerUpdater
from tallybook.runtime.clock import Clock
from tallybook.runtime.http import Listening
from tallybook.runtime.logging import logger
from tallybook.runtime.metrics import Metrics
from tallybook.runtime.pace import Pace
from tallybook.runtime.process import host_name
from tallybook.runtime.tasks import Tasks, run_together
from tallybook.runtime.watched import watchable

from .auditor import Audit, Auditor
from .copier import Copier
from .mender import Mender
from .metrics import REPAIR_METRICS, numbers
from .replicator import Replicator, ReplicatorTotals
from .tasks import TaskBoard

_log = logger("repair")

AUDITOR_RECORD: Final = "repair/auditor"
STATUS_RECORD: Final = "repair/status"
STALE_SECONDS: Final = 600
"""An auditor looks every half minute; one that has said nothing for so long is not there."""


class RepairService:
    """Repairs a cluster, together with others like it.

    Args:
        client: what it stands on; it is not closed with the service.
    """

    def __init__(self, client: Client, settings: RepairSettings) -> None:
        world = client.world
        rng = world.rng.fork("repair")
        self._client = client
        self._settings = settings
        self._clock = world.clock
        self._leads = False
        self._who = ""
        """Where people find it; nowhere, unless it serves."""
        board = TaskBoard(world.store, world.clock, rng.fork("tasks"), lease_s=settings.lease_s)
        self._copier = Copier(world.connections, Pace(world.clock, settings.bytes_per_second), world.clock)
        updater = LedgerUpdater(world.store, world.clock, rng.fork("updater"))
        mender = Mender(client, updater, self._copier, rng.fork("mender"), settings.placement)
        self._records = RecordUpdater(world.store, world.clock, rng.fork("records"))
        self.auditor = Auditor(
            world.store, world.membership, world.connections, board, settings, world.clock, rng.fork("auditor")
        )
        self.replicator = Replicator(
            board,
            mender,
            world.store,
            world.membership,
            world.clock,
            concurrent=settings.concurrent_ledgers,
            lease_s=settings.lease_s,
        )
        self._leadership = Leadership(
            world.store, world.clock, rng.fork("leader"), record=AUDITOR_RECORD, lease_s=settings.lease_s
        )

    async def serve(self, tasks: Tasks, listening: Listening | None = None) -> None:
        """Work until cancelled, and serve health and metrics meanwhile.

        Args:
            listening: where to serve them; ``None``: where the settings say.

        Raises:
            InvalidConfig: the address to serve them on cannot be bound.
        """
        clock, metrics = self._clock, self.metrics()
        listen, security = listening or self._settings.http_listen, self._settings.security
        async with watchable(metrics, listen, security, clock, tasks) as address:
            _log.info("serving", http_address=address)
            self._who = f"{host_name()}:{address.rpartition(':')[2]}"
            await self.run()

    async def run(self) -> None:
        """Work until cancelled, and serve nothing.

        Raises:
            DamagedFile, NewerFormat: the record of who audits holds something else.
        """
        await run_together(self._leadership.lead(self._rounds, who=self._who), self.replicator.run())

    def metrics(self) -> Metrics:
        """What /metrics shows."""
        metrics = Metrics()
        metrics.add(REPAIR_METRICS, lambda: numbers(self.auditor, self.replicator, self._copier, leads=self._leads))
        show_client(metrics, self._client)
        return metrics

    async def _rounds(self) -> None:
        self._leads = True
        try:
            while True:
                await self._round()
                await self._clock.sleep(self._settings.interval_s)
        finally:
            self._leads = False

    async def _round(self) -> None:
        try:
            audit = await self.auditor.round()
            times = {"at_ms": self._clock.wall_us() // 1000, "walked_at_ms": audit.walked_at_ms}
            work = {"work": worked(self.replicator.totals), "too_large": self.replicator.too_large}
            value = json.dumps({"format": FIRST, **told(audit), **times, **work}).encode()
            await self._records.update(STATUS_RECORD, partial(over_known, STATUS_RECORD, value))
        except (PeerError, StorageError) as error:
            sometimes("repair: a round ends early")
            _log.warning("a round ended early", error=error.message)


def told(audit: Audit) -> Mapping[str, object]:
    """What the auditor found, for people and programs."""
    findings = audit.findings
    return {
        "away": sorted(audit.away),
        "lost": sorted(audit.lost),
        "draining": sorted(audit.draining),
        "lost_data": sorted(audit.limbo),
        "silent": sorted(audit.silent),
        "ledgers": findings.ledgers,
        "open_ledgers": findings.open_ledgers,
        "under_replicated": findings.under_replicated,
        "moving": findings.moving,
        "needing": {
            why.value: count for why, count in sorted(findings.needing.items(), key=lambda item: item[0].value)
        },
        "to_end": findings.to_end,
        "by_hand": findings.by_hand,
        "by_hand_count": findings.by_hand_count,
        "in_one_rack": findings.in_one_rack,
        "unreadable": findings.unreadable,
        "tasks": audit.tasks,
        "paused_since_ms": audit.paused_since_ms,
    }


def worked(totals: ReplicatorTotals) -> Mapping[str, object]:
    """What the process that audits has mended itself since it began; others may have mended more."""
    return {
        "ledgers": totals.ledgers,
        "places": totals.places,
        "batches": totals.batches,
        "copied_bytes": totals.copied_bytes,
        "not_mended": totals.left_ledgers,
        "lost": totals.lost_ledgers,
        "last_error": totals.last_error,
    }


async def repair_status(store: MetadataStore) -> Mapping[str, object] | None:
    """What the auditor wrote down last; ``None`` if there was never one.

    Raises:
        MetadataUnavailable: the store does not answer.
        DamagedFile, NewerFormat: the record holds something else.
    """
    record = await store.read_record(STATUS_RECORD, linearizable=True)
    if record is None:
        return None
    try:
        found = json.loads(record.value)
    except NOT_UNDERSTOOD as error:
        raise DamagedFile(f"the record {STATUS_RECORD} cannot be understood: {error}") from error
    if not isinstance(found, dict):
        raise DamagedFile(f"the record {STATUS_RECORD} holds {type(found).__name__}")
    check_format(STATUS_RECORD, found)
    return found


def age_of(status: Mapping[str, object] | None, clock: Clock, moment: str = "at_ms") -> int | None:
    """Seconds since the auditor wrote that down, or since another moment in it; ``None`` if it does not say."""
    at_ms = None if status is None else status.get(moment)
    return max(0, clock.wall_us() // 1000 - at_ms) // 1000 if isinstance(at_ms, int) else None


async def repairing(metadata_uri: str, settings: RepairSettings, listening: Listening | None = None) -> None:
    """Repair a cluster until cancelled.

    Args:
        listening: where health and metrics are served; ``None``: where the settings say.

    Raises:
        InvalidConfig: a URI or an address makes no sense.
        MetadataUnavailable: the metadata store is not there.
    """
    async with Client(
        metadata_uri, ClientSettings(security=settings.security, archive_keys=settings.archive_keys)
    ) as client:
        tasks = Tasks("repair", _died)
        try:
            await RepairService(client, settings).serve(tasks, listening)
        finally:
            await tasks.close()


def _died(name: str, error: BaseException) -> None:
    _log.error("a task died", task=name, error=repr(error))
