"""What is known about ledgers and bookies, and the stores that agree on it.

`model` is the frozen value of a ledger with its pure transitions, `archived` the part of it that tells of the archive,
`store` the two ports (ledgers and records, and who is alive), `update` the one compare-and-set loop through which every
ledger is changed, `leader` how processes agree on one of them, `codec` the stored bytes. The drivers are
`memory`, `sqlite` and `zookeeper`; `uri` opens the one that a URI names; `faulty` makes any of them misbehave.
"""
