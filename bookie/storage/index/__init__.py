"""The index: for each batch its location in the entry logs, for each ledger its state.

``port.Index`` is the interface, ``rocksdb.RocksIndex`` implements it (tests use one in memory), ``format`` has the
bytes, ``survey`` the scans that continue past damage. Nothing here reads entry logs.
"""
