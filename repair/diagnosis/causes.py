"""The causes of a bottleneck, with their meaning and advice, and findings with their evidence."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final


class Cause(Enum):
    """The cause of a bottleneck. The values are part of the JSON output and never change."""

    DISK_FULL = "disk-full"
    JOURNAL = "journal-bound"
    DEVICE = "device-bound"
    FLUSH = "flush-bound"
    INDEX = "index-bound"
    READS = "read-bound"
    ARCHIVE = "archive-bound"
    METADATA = "metadata-bound"
    CPU = "cpu-bound"
    NETWORK = "network-bound"
    OVERLOADED = "overloaded"
    CLIENTS = "client-bound"
    IDLE = "idle"
    UNKNOWN = "unknown"

    @property
    def is_healthy(self) -> bool:
        """Whether nothing in the cluster is a bottleneck."""
        return self in {Cause.CLIENTS, Cause.IDLE}


MEANINGS: Final = {
    Cause.DISK_FULL: "a disk has no space left for acknowledged data",
    Cause.JOURNAL: "a journal gets more bytes than its device can write",
    Cause.DEVICE: "each add waits for a durable write, and the journal's device is slow to sync",
    Cause.FLUSH: "adds wait for space, because entry logs are not written as fast as adds come",
    Cause.INDEX: "index lookups or writes take longer than the entry logs",
    Cause.READS: "reads wait for the disk",
    Cause.ARCHIVE: "the object store is too slow for the data to be archived",
    Cause.METADATA: "the metadata store is slow, or does not answer",
    Cause.CPU: "an event loop has no processor time left",
    Cause.NETWORK: "adds spend more time in the network than in the bookies",
    Cause.OVERLOADED: "clients send more requests than the limits admit",
    Cause.CLIENTS: "no part of the cluster is a bottleneck: it serves all requests of its clients",
    Cause.IDLE: "there are almost no requests",
    Cause.UNKNOWN: "no bookie has reported its metrics",
}

ADVICE: Final = {
    Cause.DISK_FULL: "delete or archive ledgers, or give the bookie more disk",
    Cause.JOURNAL: "give the bookie another journal directory, on a disk of its own, or add bookies",
    Cause.DEVICE: "give the journal a device that syncs faster; until then, more concurrent appends cost nothing",
    Cause.FLUSH: "give entry logs another disk, or add bookies",
    Cause.INDEX: "raise storage.index_cache_bytes, put the index on a faster disk, or write larger batches",
    Cause.READS: "raise storage.read_cache_bytes, give entry logs another disk, or read from the archive",
    Cause.ARCHIVE: "check the limits and the region of the bucket, or let the offloader wait less",
    Cause.METADATA: "check the disk and the load of ZooKeeper, or of the SQLite file",
    Cause.CPU: "give the process a processor of its own, or spread its work over more processes",
    Cause.NETWORK: "check latency, loss and bandwidth between these processes and the bookies",
    Cause.OVERLOADED: "reduce the load of clients, raise the limits where there is memory, or add bookies",
    Cause.CLIENTS: "for more throughput, use more clients, or more concurrent appends in each",
    Cause.IDLE: "nothing to do",
    Cause.UNKNOWN: "check that bookies run, and that this machine reaches the http_listen of each",
}
"""The remedy of each cause, in one sentence."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """A measured value that supports a finding.

    Attributes:
        unit: ``part`` (of the time, or of a whole), ``s``, ``bytes``, ``/s``, or empty.
        above: the threshold of the rule; ``None`` if the value is only shown.
    """

    what: str
    value: float
    unit: str
    above: float | None = None

    def __str__(self) -> str:
        bound = "" if self.above is None else f" (from {_shown(self.above, self.unit)} on)"
        return f"{self.what}: {_shown(self.value, self.unit)}{bound}"


@dataclass(frozen=True, slots=True)
class BottleneckFinding:
    """A bottleneck at one process.

    Attributes:
        score: severity, 0 to 1: as a rule the part of the time for which the resource was in use.
        decides: whether it may be the verdict. False if it happened too rarely; then it is listed after the verdict.
    """

    cause: Cause
    process: str
    score: float
    evidence: tuple[Evidence, ...]
    decides: bool = True


def _shown(value: float, unit: str) -> str:
    match unit:
        case "part":
            return f"{value:.0%}"
        case "s":
            return f"{value:.2f} s" if value >= 1 else f"{value * 1000:.3g} ms"
        case "bytes":
            return f"{value / 1e6:,.1f} MB" if value >= 1e6 else f"{value / 1e3:,.1f} kB"
        case "/s":
            return f"{value:,.1f}/s"
        case _:
            return f"{value:,.0f}"
