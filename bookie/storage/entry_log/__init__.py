"""Entry logs: append-only files with the batches of many ledgers.

``logs.EntryLogs`` is the entrance; ``format`` has the bytes, ``writer`` the log being written, ``reader`` and ``scan``
read. Nothing here knows the index: which batches are live is decided outside.
"""
