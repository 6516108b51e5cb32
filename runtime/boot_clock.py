"""The boot-clock seam: a clock that all processes of one host share and that cannot be set.

It counts milliseconds since the boot of the host, time in suspend included, so that two processes can
compare readings. Wall time may jump, and the start of ``Clock.monotonic`` is not defined. Readings from
different boots, that is with different ``boot_id``, cannot be compared.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final, Protocol


class BootClock(Protocol):
    """The host's time since boot."""

    @property
    def boot_id(self) -> str:
        """Identifies the host and its boot; empty where the system has no such id."""

    def now_ms(self) -> int:
        """Milliseconds since the host booted."""


_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
# macOS has no CLOCK_BOOTTIME; its CLOCK_MONOTONIC continues during sleep.
_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class RealBootClock:
    """The boot clock of this host."""

    def __init__(self) -> None:
        self._boot_id = _BOOT_ID.read_text("ascii").strip() if _BOOT_ID.exists() else ""

    @property
    def boot_id(self) -> str:
        """The kernel's random id of this boot."""
        return self._boot_id

    def now_ms(self) -> int:
        """Milliseconds of ``CLOCK_BOOTTIME``."""
        return time.clock_gettime_ns(_CLOCK) // 1_000_000
