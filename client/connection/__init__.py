"""Connections to bookies: one connection per bookie and client, shared by all ledger handles.

``port.BookieConnection`` is what the rest of the client sees, ``pool`` the entrance. A connection has three streams
(adds, reads, control). Nothing here knows quorums, confirmation or ledger metadata.
"""
