"""Makes a diagnosis from two samples of each process: all findings, worst first. Pure.

A full disk comes first, because it stops everything. Overload comes last: as a rule another bottleneck causes it. All
others are ordered by score. Findings that happened too rarely to decide come after the verdict. If nothing is found,
the verdict is client-bound or idle; if no bookie was sampled, unknown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from .bookie import bookie_findings, busiest_journal
from .causes import ADVICE, MEANINGS, BottleneckFinding, Cause, Evidence
from .network import network_findings
from .processes import process_findings
from .samples import ProcessKind, Sample, SampleDelta

SOME_TRAFFIC: Final = 1.0
"""Adds and reads per second in the whole cluster; with fewer it is idle."""

_FIRST: Final = {Cause.DISK_FULL: 0, Cause.OVERLOADED: 2}
_IN_BETWEEN: Final = 1
_CHECK_SILENT: Final = "check the silent processes first"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The result of a diagnosis.

    Attributes:
        seconds: between the samples.
        findings: worst first; never empty.
        silent: processes that could not be diagnosed, and why.
        processes: processes that were diagnosed.
    """

    seconds: float
    findings: tuple[BottleneckFinding, ...]
    silent: Mapping[str, str]
    processes: tuple[str, ...]

    @property
    def verdict(self) -> Cause:
        """The cause of the first finding."""
        return self.findings[0].cause

    @property
    def sentence(self) -> str:
        """The verdict as a sentence, with advice."""
        first = self.findings[0]
        if self.silent and first.cause.is_healthy:
            return f"{first.cause.value}, of the processes that answer: {MEANINGS[first.cause]}; {_CHECK_SILENT}"
        where = f" ({first.process})" if first.process else ""
        return f"{first.cause.value}{where}: {MEANINGS[first.cause]}; {ADVICE[first.cause]}"


def diagnose(
    before: Mapping[str, Sample], after: Mapping[str, Sample], silent: Mapping[str, str] | None = None
) -> Diagnosis:
    """Diagnose a cluster.

    Args:
        before, after: samples by process name, some seconds apart.
        silent: processes that did not answer, and why.
    """
    unknown = dict(silent or {})
    changes: list[SampleDelta] = []
    for name in sorted({*before, *after} - set(unknown)):
        if name not in before or name not in after:
            unknown[name] = "answered only once"
            continue
        change = SampleDelta(before[name], after[name])
        if change.is_one_life:
            changes.append(change)
        else:
            unknown[name] = "was restarted in between"
    found = [finding for change in changes for finding in _of_one(change)] + network_findings(changes)
    found.sort(key=lambda finding: (_FIRST.get(finding.cause, _IN_BETWEEN), -finding.score, finding.process))
    decides = [finding for finding in found if finding.decides]
    seconds = max((change.seconds for change in changes), default=0.0)
    return Diagnosis(
        seconds,
        (*(decides or [_nothing_found(changes)]), *(finding for finding in found if not finding.decides)),
        dict(sorted(unknown.items())),
        tuple(change.name for change in changes),
    )


def _of_one(change: SampleDelta) -> list[BottleneckFinding]:
    of_bookie = bookie_findings(change) if change.kind is ProcessKind.BOOKIE else []
    return of_bookie + process_findings(change)


def _nothing_found(changes: Sequence[SampleDelta]) -> BottleneckFinding:
    bookies = [change for change in changes if change.kind is ProcessKind.BOOKIE]
    if not bookies:
        return BottleneckFinding(Cause.UNKNOWN, "", 0.0, (Evidence("bookies that were seen", 0, ""),))
    adds = sum(bookie.rate("tallybook_bookie_add_batches_total") for bookie in bookies)
    reads = sum(bookie.rate("tallybook_bookie_read_seconds_count") for bookie in bookies)
    traffic = (Evidence("batches added", adds, "/s", SOME_TRAFFIC), Evidence("reads", reads, "/s", SOME_TRAFFIC))
    if adds + reads < SOME_TRAFFIC:
        return BottleneckFinding(Cause.IDLE, "", 0.0, traffic)
    return BottleneckFinding(Cause.CLIENTS, "", 0.0, (*traffic, *_used(bookies, changes)))


def _used(bookies: Sequence[SampleDelta], changes: Sequence[SampleDelta]) -> list[Evidence]:
    """The utilization of the busiest process for each resource, as evidence that none is a bottleneck."""
    journal = max(map(busiest_journal, bookies))
    used = [Evidence("of the time the busiest device writes a journal", journal, "part")]
    for what, name in (
        ("of the time the busiest bookie makes checkpoints", "tallybook_bookie_checkpoint_busy_seconds_total"),
        ("of the time the busiest bookie reads entry logs", "tallybook_bookie_entry_log_read_busy_seconds_total"),
    ):
        used.append(Evidence(what, max(bookie.rate(name) for bookie in bookies), "part"))
    loop = max(change.rate("tallybook_process_loop_cpu_seconds_total") for change in changes)
    return [*used, Evidence("of a processor taken by the busiest event loop", loop, "part")]
