"""What is known about ledgers and bookies, and the stores that agree on it.

`model` is the frozen value of a ledger with its pure transitions, `store` the two ports (ledgers, and who is alive),
`update` the one compare-and-set loop through which every ledger is changed, `codec` the stored bytes. The drivers are
`memory`, `sqlite` and `zookeeper`; `uri` opens the one that a URI names; `faulty` makes any of them misbehave.
"""
