"""ZooKeeper metadata driver, for clusters of several hosts.

`client` is the entrance: it connects and builds the two ports, `store` and `membership`. `layout` defines the nodes,
`session` is the connection (kazoo, in its own threads), `requests` its calls, `tree` finds and lists ledgers,
`records` has named records, `watches` keeps watches armed. Only this folder may import kazoo.
"""
