"""What a cluster waits for, by the last looks at its processes: from the numbers of now and of a little while ago."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from typing import Final

from tallybook.repair.diagnosis.look import Round
from tallybook.repair.diagnosis.verdict import diagnose
from tallybook.repair.told import diagnosis_told

LOOK_SECONDS: Final = 5.0
"""Between the two looks that are compared, at least."""
OLD_SECONDS: Final = 60.0
"""What is older says nothing of now."""
WATCHING: Final = "not known yet: it takes two looks, a few seconds apart"

_NOTHING: Final[dict[str, object]] = {
    "verdict": None, "healthy": None, "seconds": None, "processes": [], "silent": {}, "findings": [], "age_s": None,
}  # fmt: skip


class Diagnosing:
    """Says what has changed between two looks."""

    def __init__(self) -> None:
        self._rounds: deque[tuple[float, Round]] = deque()
        self._told: tuple[float, dict[str, object]] | None = None
        self._news = asyncio.Event()

    def note(self, at: float, found: Round) -> None:
        """One more look was taken, at a monotonic second."""
        while self._rounds and at - self._rounds[0][0] > OLD_SECONDS:
            self._rounds.popleft()
        while len(self._rounds) > 1 and at - self._rounds[1][0] >= LOOK_SECONDS:
            self._rounds.popleft()
        if self._rounds and at - self._rounds[0][0] >= LOOK_SECONDS:
            before = self._rounds[0][1]
            told = diagnose(before.samples, found.samples, {**before.silent, **found.silent})
            self._told = at, diagnosis_told(told)
            self._news.set()
        self._rounds.append((at, found))

    def told(self, now: float, why: str) -> dict[str, object]:
        """What is known.

        Args:
            now: a monotonic second.
            why: for what reason the last look found nothing; empty: it found something.
        """
        if self._told is None or now - self._told[0] > OLD_SECONDS:
            self._news.clear()
            return {**_NOTHING, "sentence": f"not known: {why}" if why else WATCHING, "why": why}
        return {**self._told[1], "age_s": round(now - self._told[0], 1), "why": why}

    async def wait(self, seconds: float) -> None:
        """Wait until something is known, but no longer than that."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._news.wait()
