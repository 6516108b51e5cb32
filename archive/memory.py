"""What a process keeps of the memory that it has used for archive objects, and freed.

Arrow has an allocator of its own, mimalloc unless ARROW_DEFAULT_MEMORY_POOL names another one, and what the C library
is told (``runtime/tuning.py``) does not reach it. Both keep freed pages: a packing process holds 349 MiB between rounds
of some 100 MB, 307 without what Arrow keeps, 264 without what glibc keeps either (measured).

To get them anew costs 20 to 30 ms of processor time, so this is for who has nothing to do: after each of those rounds
it would make packing 3 to 5 % slower. To have Arrow use glibc instead made it 6 to 24 % slower, with six times the page
faults, and the process no smaller.
"""

from __future__ import annotations

import pyarrow as pa

from tallybook.runtime.tasks import Workers
from tallybook.runtime.tuning import give_back_freed_memory


async def give_back_memory(workers: Workers) -> None:
    """Give the system back what Arrow and the C library have freed and keep. To be called on the main thread."""
    # It takes a millisecond, and no other thread can do it: of what the main thread holds, mimalloc lets go there only.
    pa.default_memory_pool().release_unused()
    await workers.run(give_back_freed_memory)
