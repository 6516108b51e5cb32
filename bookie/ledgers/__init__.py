"""State of the ledgers that a bookie holds (fences, deletion, limbo, keys, identities, LAC), and its metadata lookups.

``table.LedgerTable`` is the entrance: it has the one ``Ledger`` object (``state``) of each ledger in memory.
Entries are stored elsewhere: nothing here knows caches or entry logs.
"""
