"""The tables of RocksDB below an index: for damage that no change of the index does, and for RocksDB's own figures."""

from typing import Any

from tallybook.bookie.storage.index.rocksdb import RocksIndex


def rows_of(index: RocksIndex) -> Any:
    """The table of rows, as ``rocksdict`` has it."""
    return index._database._rows


def states_of(index: RocksIndex) -> Any:
    """The table of ledger states."""
    return index._database._states
