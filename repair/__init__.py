"""Keeps every ledger at its number of copies: finds what is lost or damaged, and gives it back.

`needs` says what a ledger needs, from its metadata and from who is there; `mender` does it; `auditor` finds the ledgers
and hands them out as `tasks`; `service` runs all of it.
"""
