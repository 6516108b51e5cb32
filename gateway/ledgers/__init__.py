"""``LedgerService``: create, append, read, tail, close, recover and delete ledgers over gRPC.

``service.py`` is the entrance: one handler per RPC. ``append.py`` and ``read.py`` serve the streaming RPCs and
``messages.py`` converts protobuf messages. Nothing here knows streams of records.
"""
