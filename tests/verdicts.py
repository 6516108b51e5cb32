"""Expected verdicts of a diagnosis in tests that provoke a bottleneck: cause, process, and numbers."""

from __future__ import annotations

from tallybook.repair.diagnosis.causes import Cause, Evidence
from tallybook.repair.diagnosis.verdict import Diagnosis


def named(found: Diagnosis, cause: Cause, process: str, *beyond: str) -> dict[str, Evidence]:
    """The evidence of the verdict, by what it is of.

    The verdict has to be this one, of this process, and the numbers of ``beyond`` have to be on the wrong side of the
    thresholds that are reported with them.
    """
    first = found.findings[0]
    assert (found.verdict, first.process) == (cause, process), found
    told = {each.what: each for each in first.evidence}
    for what in beyond:
        number = told[what]
        assert number.above is not None, f"{number} has no threshold"
        assert number.value >= number.above > 0, number
    return told
