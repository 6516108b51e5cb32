"""Liveness of the auditor, from its leader record.

A leader updates its record three times per lease. If the console sees no new version for a whole lease by its own
monotonic clock, the auditor is dead; wall clocks of two hosts are never compared (``metadata/records/leader.py``).
"""

from __future__ import annotations

from tallybook.core.errors import DamagedFile, NewerFormat
from tallybook.metadata.records.leader import decode_leader
from tallybook.metadata.store import MetadataRecord
from tallybook.repair.service import AUDITOR_RECORD, STALE_SECONDS


class AuditorLiveness:
    """Notes when the version of the leader record last changed."""

    def __init__(self) -> None:
        self._version: int | None = None
        self._since = 0.0

    def status(self, record: MetadataRecord | None, now: float, audited_s_ago: int | None) -> dict[str, object]:
        """The auditor and its ``state``: running, silent, "nobody" (no auditor), or unreadable.

        Args:
            record: the current record.
            now: monotonic time in seconds.
            audited_s_ago: age of its last report.
        """
        if record is None:
            return {"state": "nobody", "who": None, "silent_s": None, "why": ""}
        if record.version != self._version:
            self._version, self._since = record.version, now
        try:
            found = decode_leader(AUDITOR_RECORD, record.value)
        except (DamagedFile, NewerFormat) as error:
            return {"state": "unreadable", "who": None, "silent_s": None, "why": error.message}
        silent_s = now - self._since
        if found.holder is None:
            state, who = "nobody", None
        else:
            overdue = audited_s_ago is not None and audited_s_ago >= STALE_SECONDS
            state, who = "silent" if overdue or silent_s >= found.lease_s else "running", found.who or found.holder
        return {"state": state, "who": who, "silent_s": round(silent_s, 1), "why": ""}
