"""Subscriptions: stored cursors of readers, each with one reader at a time.

Entrance: `handle.SubscriptionReader`. `record` has the rules and does no I/O, `store` keeps them in the metadata store
and in cursor ledgers. The records themselves are read by `stream/reader`.
"""
