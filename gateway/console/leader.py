"""Who audits: by the record of the auditor, and by whether it still writes that record.

A leader writes its record three times in a lease. So one whose record stands still for a lease, by the clock of whoever
looks, is not there any more, and nobody compares wall clocks (``metadata/leader.py``).
"""

from __future__ import annotations

from tallybook.core.errors import DamagedFile, NewerFormat
from tallybook.metadata.leader import decode_leader
from tallybook.metadata.store import Record
from tallybook.repair.service import AUDITOR_RECORD, STALE_SECONDS


class Leading:
    """Watches one record."""

    def __init__(self) -> None:
        self._version: int | None = None
        self._since = 0.0

    def told(self, record: Record | None, now: float, audited_s_ago: int | None) -> dict[str, object]:
        """Who it is, and ``state``: running, silent, nobody, or unreadable.

        Args:
            record: as it is now.
            now: a monotonic second.
            audited_s_ago: since its last word.
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
