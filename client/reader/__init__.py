"""The read path: ranges, tailing and single entries, from bookies or from the archive; every entry is verified.

Entrance: ``handle.LedgerReader``. ``machine`` decides which replica is asked next and what a failed read means,
``replicas`` sends the requests, ``lac`` follows the last add confirmed. Nothing here fences a ledger or changes
metadata.
"""
