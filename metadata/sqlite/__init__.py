"""SQLite metadata driver: one file, for any number of processes on one host. The default driver.

`client` is the entrance: it opens the file and builds the two ports, `store` and `membership`. `schema` defines the
tables, `database` runs transactions on one thread, `poller` detects writes of other processes for watches. Only this
folder may import sqlite3.
"""
