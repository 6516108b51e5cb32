"""A repair process. Every repair process is a replicator; one of them is also the auditor.

The auditor is elected through the metadata (``metadata/records/leader.py``). After each pass it writes its findings to
the record ``repair/status``, which ``tallybook cluster status`` shows.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Final

from tallybook.client.client import Client
from tallybook.client.metrics import show_client
from tallybook.core.coverage import sometimes
from tallybook.core.errors import PeerError, StorageError
from tallybook.core.settings import ClientSettings, RepairSettings
from tallybook.metadata.ledger_update import LedgerUpdater
from tallybook.metadata.records.format import FIRST, check_overwritable, load_json
from tallybook.metadata.records.leader import Leadership
from tallybook.metadata.records.update import RecordUpdater
from tallybook.metadata.store import MetadataStore
from tallybook.runtime.clock import Clock
from tallybook.runtime.concurrency.backoff import with_drift
from tallybook.runtime.concurrency.rate_limit import RateLimiter
from tallybook.runtime.logging import logger
from tallybook.runtime.metrics.registry import Metrics
from tallybook.runtime.process import host_name
from tallybook.runtime.tasks import Tasks, run_together

from .auditor import Auditor, AuditReport
from .copier import Copier
from .ledger_repair import LedgerRepairer
from .metrics import REPAIR_METRICS, RepairNumbers
from .replicator import Replicator, ReplicatorTotals
from .tasks import TaskBoard

if TYPE_CHECKING:
    from tallybook.runtime.listening import Listening

_log = logger("repair")

AUDITOR_RECORD: Final = "repair/auditor"
STATUS_RECORD: Final = "repair/status"
STALE_SECONDS: Final = 600
"""The auditor makes a pass every half minute. If its status is older than this, no auditor is running."""


class RepairService:
    """The auditor and the replicator of one process.

    Args:
        client: gives access to the cluster. The service does not close it.
    """

    def __init__(self, client: Client, settings: RepairSettings) -> None:
        world = client.world
        rng = world.rng.fork("repair")
        self._client = client
        self._settings = settings
        self._clock = world.clock
        self._rng = rng.fork("passes")
        self._leads = False
        self._address = ""
        """Host and port of the HTTP endpoints; empty if the service has none."""
        board = TaskBoard(world.store, world.clock, rng.fork("tasks"), lease_s=settings.lease_s)
        self._copier = Copier(
            world.connections, RateLimiter(world.clock, settings.bytes_per_second), world.clock, rng.fork("copier")
        )
        updater = LedgerUpdater(world.store, world.clock, rng.fork("updater"))
        repairer = LedgerRepairer(client, updater, self._copier, rng.fork("mender"), settings.placement)
        self._records = RecordUpdater(world.store, world.clock, rng.fork("records"))
        self.auditor = Auditor(
            world.store, world.membership, world.connections, board, settings, world.clock, rng.fork("auditor")
        )
        self.replicator = Replicator(
            board,
            repairer,
            world.store,
            world.membership,
            world.clock,
            rng.fork("replicator"),
            concurrent=settings.concurrent_ledgers,
            lease_s=settings.lease_s,
        )
        self._leadership = Leadership(
            world.store, world.clock, rng.fork("leader"), record=AUDITOR_RECORD, lease_s=settings.lease_s
        )

    async def serve(self, tasks: Tasks, listening: Listening | None = None) -> None:
        """Run until cancelled, with HTTP endpoints for health and metrics.

        Args:
            listening: socket for the endpoints; ``None``: bind the address in the settings.

        Raises:
            InvalidConfig: the address cannot be bound.
        """
        clock, metrics = self._clock, self.metrics()
        listen, security = listening or self._settings.http_listen, self._settings.security
        # Commands that only read the status need no HTTP server.
        from tallybook.runtime.http.health_server import serve_health  # noqa: PLC0415

        async with serve_health(metrics, listen, security, clock, tasks) as address:
            _log.info("serving", http_address=address)
            self._address = f"{host_name()}:{address.rpartition(':')[2]}"
            await self.run()

    async def run(self) -> None:
        """Run until cancelled, without HTTP endpoints.

        Raises:
            DamagedFile, NewerFormat: the auditor's leader record cannot be decoded.
        """
        await run_together(self._leadership.lead(self._audit, who=self._address), self.replicator.run())

    def metrics(self) -> Metrics:
        """The metrics of /metrics."""
        metrics = Metrics()
        metrics.add(
            REPAIR_METRICS.catalog,
            lambda: REPAIR_METRICS.readings(RepairNumbers(self.auditor, self.replicator, self._copier, self._leads)),
        )
        show_client(metrics, self._client)
        return metrics

    async def _audit(self) -> None:
        self._leads = True
        try:
            while True:
                await self._run_pass()
                await self._clock.sleep(with_drift(self._rng, self._settings.interval_s))
        finally:
            self._leads = False

    async def _run_pass(self) -> None:
        try:
            audit = await self.auditor.run_pass()
            times = {"at_ms": self._clock.wall_us() // 1000, "walked_at_ms": audit.walked_at_ms}
            work = {"work": replicator_json(self.replicator.totals), "too_large": self.replicator.too_large}
            value = json.dumps({"format": FIRST, **audit_json(audit), **times, **work}).encode()
            await self._records.update(STATUS_RECORD, partial(check_overwritable, STATUS_RECORD, value))
        except (PeerError, StorageError) as error:
            sometimes("repair: a pass ends early")
            _log.warning("an auditor pass failed; it is retried", error=error.message)


def audit_json(audit: AuditReport) -> Mapping[str, object]:
    """The auditor's findings, as JSON values."""
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


def replicator_json(totals: ReplicatorTotals) -> Mapping[str, object]:
    """Totals of the replicator in the auditor's process since it started. Other processes are not included."""
    return {
        "ledgers": totals.ledgers,
        "places": totals.replaced,
        "batches": totals.batches,
        "copied_bytes": totals.copied_bytes,
        "not_mended": totals.incomplete_ledgers,
        "lost": totals.lost_ledgers,
        "last_error": totals.last_error,
    }


async def repair_status(store: MetadataStore) -> Mapping[str, object] | None:
    """The status that the auditor wrote last; ``None`` if no auditor has run yet.

    Raises:
        MetadataUnavailable: the store does not answer.
        DamagedFile, NewerFormat: the record cannot be decoded.
    """
    record = await store.read_record(STATUS_RECORD, linearizable=True)
    return None if record is None else load_json(STATUS_RECORD, record.value)


def age_of(status: Mapping[str, object] | None, clock: Clock, moment: str = "at_ms") -> int | None:
    """Seconds since a moment in the auditor's status (by default: when it was written); ``None`` if it has none."""
    at_ms = None if status is None else status.get(moment)
    return max(0, clock.wall_us() // 1000 - at_ms) // 1000 if isinstance(at_ms, int) else None


async def run_repair(metadata_uri: str, settings: RepairSettings, listening: Listening | None = None) -> None:
    """Run a repair process until cancelled.

    Args:
        listening: socket for health and metrics; ``None``: bind the address in the settings.

    Raises:
        InvalidConfig: a URI or an address is invalid.
        MetadataUnavailable: the metadata store does not answer.
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
    _log.error("a background task failed", task=name, error=repr(error))
