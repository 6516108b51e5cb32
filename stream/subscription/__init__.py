"""Subscriptions: stored cursors of readers, each with one reader at a time.

Entrance: `opening`, which takes a subscription and gives a `handle.SubscriptionReader`. `store` keeps cursors in the
metadata store and in cursor ledgers, `lag` measures how far they are behind. The rules are in
`catalog/subscription_record`; the records of the stream are read by `stream/reader`, and nothing here writes any.
"""
