"""What a task of a query does on an executor, from its partition to batches that Spark takes."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from tallybook.runtime.blocking import LoopThread

from .columns import columns_for
from .gaps import Gap
from .options import ReadOptions
from .payloads import parser_of
from .places import opened
from .plan import EntryPartition
from .reading import read_partition
from .shaping import Shaper

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


def read_rows(options: ReadOptions, schema: StructType, partition: EntryPartition) -> Iterator[pa.RecordBatch]:
    """The rows of a partition as Spark wants them, by a task that opens and closes all that it needs.

    Raises:
        TallybookError: they cannot be had; ``DataMissing`` and ``NoSuchLedger``: ever.
    """
    shaper = Shaper(columns_for(options), options, parser_of(options.payload, schema))
    with LoopThread("tallybook") as loop:
        yield from loop.iterate(_shaped(options, shaper, partition))


async def _shaped(
    options: ReadOptions, shaper: Shaper, partition: EntryPartition
) -> AsyncGenerator[pa.RecordBatch, None]:
    async with opened(options.place, partition) as place:
        rows = read_partition(place, partition, whole_gaps=not options.fail_on_data_loss)
        try:
            async for found in rows:
                if not isinstance(found, Gap):
                    for batch in shaper.rows(found):
                        yield batch
                elif options.fail_on_data_loss:
                    raise found.error()
                else:
                    yield shaper.gap(found)
        finally:
            await rows.aclose()
