"""The `tallybook` command: bookies, ledgers, metadata, and a whole cluster on one machine."""
