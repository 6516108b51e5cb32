"""Prints the SQLite metadata of a cluster as ZooKeeper nodes. A program; see the package.

    python -P zookeeper_nodes.py METADATA_FILE

It prints one line per node below the root of the cluster, parents first: the relative path, and the value in
hexadecimal. The layout, and values that SQLite stores in another form, come from the code that it runs with; ledgers,
cookies and records have the same bytes in both stores.
"""

from __future__ import annotations

import sys

from tallybook.metadata.sqlite.schema import connect
from tallybook.metadata.zookeeper.layout import FORMAT, Layout, with_deleted, with_parents


def nodes(metadata_file: str) -> dict[str, bytes]:
    """Values by path; each path starts with a slash."""
    layout, connection = Layout(""), connect(metadata_file, metadata_file, "")
    try:
        facts = dict(connection.execute("SELECT name, value FROM facts"))
        found = {
            layout.format: str(FORMAT).encode(),
            layout.cluster: facts["cluster_id"].encode(),
            layout.ids: facts["next_ledger_id"].encode(),
            layout.bookies: b"",
        }
        for ledger_id, value in connection.execute("SELECT ledger_id, value FROM ledgers"):
            found[layout.ledger(ledger_id)] = bytes(value)
        for first, last in connection.execute("SELECT first_id, last_id FROM deleted_ledgers"):
            for ledger_id in range(first, last + 1):
                group = layout.group(ledger_id)
                found[group] = with_deleted(found.get(group, b""), ledger_id)
        for bookie_id, cookie in connection.execute("SELECT bookie_id, cookie FROM cookies"):
            found[layout.cookie(bookie_id)] = bytes(cookie)
        for name, value in connection.execute("SELECT name, value FROM records"):
            found[layout.record(name)] = bytes(value)
    finally:
        connection.close()
    for path in list(found):
        for parent in with_parents(path):
            found.setdefault(parent, b"")
    return found


if __name__ == "__main__":
    for where, what in sorted(nodes(sys.argv[1]).items()):
        print(where.removeprefix("/"), what.hex())
