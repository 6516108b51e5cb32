"""Reading and writing of entries of ledgers, in batches and as a stream.

``batch.py`` and ``micro_batches.py`` are the readers, ``sink.py`` the writers, ``row_selection.py`` serves
``read_ledgers``. ``planning.py`` resolves a query to a snapshot on the driver and cuts it into tasks, ``reading.py``
reads one task, ``row_shaping.py`` makes its rows. Nothing here knows records of streams.
"""
