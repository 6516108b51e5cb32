"""Reading and writing of records of streams: one row per record.

``batch.py`` and ``micro_batches.py`` are the readers, ``sink.py`` the writers, ``native.py`` serves ``read_ledgers``.
``bounds.py`` parses where a query starts and ends, ``bounds_resolution.py`` finds these places in the streams,
``planning.py`` and ``ranges.py`` turn them into partitions of entries, ``rows.py`` decodes entries to records.
"""
