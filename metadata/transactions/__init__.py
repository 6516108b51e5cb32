"""Transactions: sets of ledgers written in parallel that become visible together.

``commit`` is the entrance: it publishes the ledgers of a transaction, or abandons them. ``model`` has the marks on
ledgers and the visibility rule, ``sink_record`` the record of a sink, ``abandoned`` the clean-up by the offloader.
Nothing here reads or writes entries.
"""
