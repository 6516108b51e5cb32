"""Spark jobs over a whole archive.

    verify(spark, URI, results="/data/verified")    check every checksum of every entry in all objects
    compact(spark, URI)                             merge many objects into few large ones
    export(spark, URI, "/data/flights")             write closed ledgers to partitioned Parquet, or to a table

Each job can be stopped, and continues when it is run again. The formats and the moves are those of ``archive`` and
``offload``; here is how Spark spreads the work. No job appends to a ledger.
"""

from .compact import compact
from .export import export
from .verify import verify

__all__ = ["compact", "export", "verify"]
