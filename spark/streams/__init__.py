"""Reading and writing of records of streams: one row per record.

``batch.py`` and ``micro_batches.py`` are the readers, ``sink.py`` the writers, ``native.py`` serves ``read_ledgers``.
``bounds_resolution.py`` finds in the streams where a query starts and ends, ``planning.py`` and ``ranges.py`` turn
these places into partitions of entries, which ``spark/ledgers`` reads, ``rows.py`` decodes entries to records. Nothing
here reads a bookie or an object itself.
"""
