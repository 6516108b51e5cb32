"""A Python data source that only passes batches from memory to Spark: the least that any such source costs.

Its batches have the columns and the size of those of ``format("tallybook")``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from tallybook.runtime.rng import SeededRng
from tallybook.spark.columns import ENTRY_DDL, columns_of
from tallybook.spark.ledgers.row_shaping import BATCH_BYTES
from tallybook.spark.options import LocationOptions, ReadOptions
from tallybook.spark.query.partitions import DEFAULT_PARTITION_BYTES
from tallybook.spark.worker import settle_worker

_OTHER_BYTES = 4 * 8
"""Bytes of a row besides its payload."""


@dataclass
class RowCount(InputPartition):
    """The number of rows of one task."""

    rows: int


class FloorSource(DataSource):
    """``format("floor")``, with options ``rows`` and ``payload_bytes`` of each."""

    @classmethod
    def name(cls) -> str:
        """The name for ``format``."""
        return "floor"

    def schema(self) -> str:
        """The columns of entries."""
        return ENTRY_DDL

    def reader(self, schema: StructType) -> DataSourceReader:
        """The reader."""
        return _FloorReader(int(self.options["rows"]), int(self.options["payload_bytes"]))


class _FloorReader(DataSourceReader):
    def __init__(self, rows: int, payload_bytes: int) -> None:
        self._rows = rows
        self._payload_bytes = payload_bytes

    def partitions(self) -> list[RowCount]:
        """As many as the same ledger has."""
        limit = DEFAULT_PARTITION_BYTES // self._payload_bytes
        return [RowCount(min(limit, self._rows - at)) for at in range(0, self._rows, limit)]

    def read(self, partition: RowCount) -> Iterator[pa.RecordBatch]:  # type: ignore[override]
        """The same batch again and again."""
        settle_worker()
        step = max(1, BATCH_BYTES // (self._payload_bytes + _OTHER_BYTES))
        batch = self._batch(min(step, partition.rows))
        for at in range(0, partition.rows, step):
            yield batch.slice(0, min(step, partition.rows - at))

    def _batch(self, rows: int) -> pa.RecordBatch:
        offsets = np.arange(rows + 1, dtype=np.int32) * self._payload_bytes
        data = SeededRng(1).token(rows * self._payload_bytes)
        payload = pa.Array.from_buffers(pa.binary(), rows, [None, pa.py_buffer(offsets), pa.py_buffer(data)])
        numbers = pa.array(np.arange(rows))
        schema = columns_of(ReadOptions(LocationOptions(None, None)), "").arrow()
        columns = [payload if field.name == "payload" else numbers.cast(field.type) for field in schema]
        return pa.RecordBatch.from_arrays(columns, schema=schema)
