"""Metadata in one SQLite file: the default, for any number of processes on one host.

`schema` is what the file looks like, `database` the one connection and its thread, `store` and `membership` the two
ports, `poller` how watches learn of other processes' writes, `client` puts them together.
"""
