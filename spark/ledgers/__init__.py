"""Reading and writing of entries of ledgers: batch, streaming, and ``read_ledgers``.

``batch.py`` and ``micro_batches.py`` are the readers, ``sink.py`` the writers, ``native.py`` is ``read_ledgers``.
``planning.py`` resolves a query to a snapshot on the driver, ``partitions.py`` cuts it into tasks, ``reading.py`` reads
one task. Nothing here knows records of streams, except ``native.py``, which also serves queries of streams.
"""
