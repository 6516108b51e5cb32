"""``StreamService``: append to, read and administer streams of records over gRPC.

``service.py`` is the entrance: one handler per RPC. ``append.py`` and ``read.py`` serve the streaming RPCs,
``writers.py`` shares one writer per stream among clients, ``stores.py`` keeps one ``StreamStore`` per namespace.
Nothing here accesses bookies or ledger metadata directly: all of it goes through ``tallybook.stream``.
"""
