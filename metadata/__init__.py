"""Metadata of ledgers, bookies and streams, and the stores that keep it.

`store` defines the two ports: `MetadataStore` (ledgers and named records) and `Membership` (bookies that are alive).
The drivers are `memory`, `sqlite` and `zookeeper`; `uri` opens the driver that a URI names. `ledger/` has the metadata
of one ledger and its transitions, `codec` their encoding, `ledger_update` the compare-and-set loop through which every
ledger is changed. `records/` has named records (leader election, bookie modes, ...), `transactions/` sets of ledgers
that are published together. Nothing here may talk to bookies or object stores.
"""
