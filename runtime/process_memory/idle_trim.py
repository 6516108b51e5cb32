"""Returns freed memory to the system when the process has been idle for a while.

The allocator keeps freed memory for reuse (``tuning``). After a high load this is several times what an idle process
needs: three bookies overloaded by 200 clients kept 500 MiB each, with 25 to 60 MiB in use (measured). Fragmentation
makes the process grow from load to load.

Memory that is returned costs a page fault for every 4 KiB when it is needed again, so this is not done under load:
only after some polls in a row with little use of a processor, and once more later, which returns what a slow flush has
freed after the first time. A busy poll starts the count again. Allocations of all threads, the event loop included,
wait during the trim: 12 ms per 100 MiB (measured).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, NoReturn

from ..clock import Clock
from ..logging import logger
from ..tasks import Workers
from ..tuning import give_back_freed_memory

POLL_SECONDS: Final = 5.0
IDLE_POLLS: Final = (3, 12)
"""The memory is trimmed after as many idle polls in a row."""
IDLE_CPU_SHARE: Final = 0.2
"""Share of one processor that all threads of an idle process use together."""

_log = logger("memory")


async def trim_when_idle(
    clock: Clock,
    workers: Workers,
    cpu_seconds: Callable[[], float] = time.process_time,
    give_back: Callable[[], object] = give_back_freed_memory,
) -> NoReturn:
    """Poll the process until cancelled, and trim the heap when it is idle. No effect without glibc.

    Args:
        workers: run the trim, which blocks.
        cpu_seconds: processor time of the process so far.
    """
    used, quiet = cpu_seconds(), 0
    while True:
        await clock.sleep(POLL_SECONDS)
        before, used = used, cpu_seconds()
        quiet = quiet + 1 if used - before < IDLE_CPU_SHARE * POLL_SECONDS else 0
        if quiet in IDLE_POLLS:
            try:
                await workers.run(give_back)
            except Exception as error:  # noqa: BLE001 - no task waits for this one, and a failed trim is harmless
                _log.defect("freed memory was not given back", error)
