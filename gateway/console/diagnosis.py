"""Diagnosis of what limits a cluster, from two metric samples of its processes a few seconds apart."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from typing import Final

from tallybook.repair.diagnosis.sampling import ProcessSamples
from tallybook.repair.diagnosis.verdict import diagnose
from tallybook.repair.status.report import diagnosis_json

MIN_INTERVAL_SECONDS: Final = 5.0
"""Minimum interval between the two samples that are compared."""
MAX_AGE_SECONDS: Final = 60.0
"""Older samples and verdicts are dropped."""
NOT_YET_KNOWN: Final = "not known yet: it needs two samples, a few seconds apart"

_NOTHING: Final[dict[str, object]] = {
    "verdict": None, "healthy": None, "seconds": None, "processes": [], "silent": {}, "findings": [], "age_s": None,
}  # fmt: skip


class DiagnosisTracker:
    """Keeps recent samples and the last verdict made from two of them."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, ProcessSamples]] = deque()
        self._last: tuple[float, dict[str, object]] | None = None
        self._known = asyncio.Event()

    def note(self, at: float, found: ProcessSamples) -> None:
        """Add a sample taken at monotonic time ``at`` in seconds."""
        while self._samples and at - self._samples[0][0] > MAX_AGE_SECONDS:
            self._samples.popleft()
        while len(self._samples) > 1 and at - self._samples[1][0] >= MIN_INTERVAL_SECONDS:
            self._samples.popleft()
        if self._samples and at - self._samples[0][0] >= MIN_INTERVAL_SECONDS:
            before = self._samples[0][1]
            status = diagnose(before.samples, found.samples, {**before.silent, **found.silent})
            self._last = at, diagnosis_json(status)
            self._known.set()
        self._samples.append((at, found))

    def status(self, now: float, why: str) -> dict[str, object]:
        """The last verdict.

        Args:
            now: monotonic time in seconds.
            why: why the last poll failed; empty: it succeeded.
        """
        if self._last is None or now - self._last[0] > MAX_AGE_SECONDS:
            self._known.clear()
            return {**_NOTHING, "sentence": f"not known: {why}" if why else NOT_YET_KNOWN, "why": why}
        return {**self._last[1], "age_s": round(now - self._last[0], 1), "why": why}

    async def wait(self, seconds: float) -> None:
        """Wait for a verdict, at most ``seconds``."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._known.wait()
