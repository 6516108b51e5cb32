"""Records of streams in the metadata store: heads, chapters, names, subscriptions and deliveries, and their encoding.

Entrance: `catalog.StreamCatalog`, which reads and writes the records of a stream. `head` has the rules of segments and
owners, `subscription_record` those of cursors, `delivery_record` those of batches; none of them does I/O. Nothing here
reads or writes a ledger.
"""
