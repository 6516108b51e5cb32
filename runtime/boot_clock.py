"""The boot-clock seam: a clock that all processes of one host share and nobody can set.

It counts from the host's boot, time in suspend included, so two processes can compare its
readings with each other; wall time jumps, and the zero of ``Clock.monotonic`` is nobody's
business. A reading means nothing after the next boot, which ``boot_id`` tells.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final, Protocol


class BootClock(Protocol):
    """The host's time since boot."""

    @property
    def boot_id(self) -> str:
        """Which boot of which host this is; empty where the system does not tell."""

    def now_ms(self) -> int:
        """Milliseconds since the host booted."""


_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
# macOS has no CLOCK_BOOTTIME; its CLOCK_MONOTONIC goes on during sleep.
_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class RealBootClock:
    """This host's clock."""

    def __init__(self) -> None:
        self._boot_id = _BOOT_ID.read_text("ascii").strip() if _BOOT_ID.exists() else ""

    @property
    def boot_id(self) -> str:
        """The kernel's random id of this boot."""
        return self._boot_id

    def now_ms(self) -> int:
        """Milliseconds of ``CLOCK_BOOTTIME``."""
        return time.clock_gettime_ns(_CLOCK) // 1_000_000
