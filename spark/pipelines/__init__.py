"""Work over a whole archive, in parallel on Spark.

    verify(spark, URI, results="/data/verified")    every checksum of every entry, of all objects
    compact(spark, URI)                             many objects become few large ones
    export(spark, URI, "/data/flights")             closed ledgers into partitioned Parquet, or into a table

Each of them may be stopped, and goes on when it is run again.
"""

from .compact import compact
from .export import export
from .verify import verify

__all__ = ["compact", "export", "verify"]
