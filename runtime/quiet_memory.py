"""Gives back what a process keeps of freed memory, once it has had little to do for a while.

Freed memory is kept for what comes next (``tuning``). After a great load that is several times what a quiet process
needs: three bookies that two hundred clients had overloaded kept 500 MiB each, of which 25 to 60 were in use
(measured). And each load leaves gaps that the next one does not fill, so that the process grows from one to the next.

    busy --- looks with less than QUIET_SHARE of a processor, QUIET_LOOKS in a row ---> given back, once
      ^                                                                                     |
      '--------------------------------- a busy look ---------------------------------------'

To get it anew costs a page fault for every 4 KiB, so it is not done under load. Whatever needs memory meanwhile, the
event loop included, waits for the C library: 12 ms for each 100 MiB that it looks through (measured), once a load.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, NoReturn

from .clock import Clock
from .logging import logger
from .tasks import Workers
from .tuning import give_back_freed_memory

LOOK_SECONDS: Final = 5.0
QUIET_LOOKS: Final = 3
QUIET_SHARE: Final = 0.2
"""Of one processor, over all threads of the process."""

_log = logger("memory")


async def give_back_when_quiet(
    clock: Clock,
    workers: Workers,
    cpu_seconds: Callable[[], float] = time.process_time,
    give_back: Callable[[], object] = give_back_freed_memory,
) -> NoReturn:
    """Look at the process for ever; where the C library is not glibc, nothing comes of it.

    Args:
        workers: for the giving back, which takes as long.
        cpu_seconds: time of processors that the process has taken since it began.
    """
    used, quiet = cpu_seconds(), 0
    while True:
        await clock.sleep(LOOK_SECONDS)
        before, used = used, cpu_seconds()
        quiet = quiet + 1 if used - before < QUIET_SHARE * LOOK_SECONDS else 0
        if quiet == QUIET_LOOKS:
            try:
                await workers.run(give_back)
            except Exception as error:  # noqa: BLE001 - nobody waits for this task, and the process is none the worse
                _log.defect("freed memory was not given back", error)
