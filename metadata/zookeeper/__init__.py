"""Metadata in ZooKeeper, for clusters of several hosts.

`layout` says which node is where, `session` is the one connection (kazoo, in threads of its own), `tree` finds and
lists ledgers, `store` and `membership` are the two ports, `hub` keeps watches armed, `client` puts them together.
"""
