"""Storage of batches after the journal: caches in memory, checkpoints, entry logs and index on the disk.

``write_cache`` takes new batches, ``checkpoint`` moves them to ``entry_log/`` and ``index/``, and ``flushed_batches``
reads them back through ``read_cache``, ``entry_tables`` and ``read_ahead``. Nothing here decides what may be
added or dropped.
"""
