"""Ledger recovery: fence a ledger, find its last entry, write back under-replicated entries, and close it.

Entrance: ``driver.recover_ledger``. ``machine`` has the rules and does no I/O; ``lossy`` is the variant for operators
that accepts the loss of entries. Nothing here runs while a ledger is written normally.
"""
