"""Looking after streams again and again, by one of however many processes run it.

Who does it is settled through the metadata (``metadata/leader.py``). That only saves work: a round may be made by
several at once, or by hand (``tallybook stream keep``).
"""

from __future__ import annotations

from typing import Final

from tallybook.core.errors import HandleClosed, TallybookError, is_defect
from tallybook.metadata.leader import Leadership
from tallybook.runtime.clock import Clock
from tallybook.runtime.logging import logger
from tallybook.runtime.rng import Rng

from .load import StreamLoad
from .streams import StreamStore

LEADER_RECORD: Final = "stream-keeper"
LEASE_SECONDS: Final = 10.0

_log = logger("stream.keeper")


async def keep_for_ever(
    streams: StreamStore, clock: Clock, rng: Rng, interval_s: float, load: StreamLoad | None = None
) -> None:
    """Whenever this process leads, look after all streams every so many seconds; until cancelled.

    Args:
        load: where rounds are counted.

    Raises:
        DamagedFile: the record of the leader holds something else.
        HandleClosed: the store, or its client, is closed.
    """
    counts = load or StreamLoad()

    async def rounds() -> None:
        while True:
            try:
                failed = await streams.keep()
                counts.keeper_rounds += 1
                counts.keeper_failures += failed
                _log.debug("looked after streams", failed_count=failed)
            except TallybookError as error:
                if is_defect(error) or isinstance(error, HandleClosed):
                    raise
                counts.keeper_failures += 1
                _log.warning("streams are looked after later", error=error.message)
            await clock.sleep(interval_s)

    leadership = Leadership(
        streams.metadata_store, clock, rng.fork("stream keeper"), record=LEADER_RECORD, lease_s=LEASE_SECONDS
    )
    await leadership.lead(rounds)
