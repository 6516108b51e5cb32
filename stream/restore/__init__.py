"""Restores the records of streams into a metadata store, from a copy, after a loss of metadata.

Entrance: `restore.restore_streams`. Ledger metadata is restored elsewhere (`tallybook.metadata`, `tallybook.offload`);
nothing here runs in normal operation.
"""
