"""Re-replication: finds ledgers with lost or damaged copies and restores their replication factor.

Entrance: ``service.RepairService``. One process of the cluster is the auditor (``auditor``): it walks over all ledgers
(``ledger_walk``), decides what each needs (``needs``, pure) and publishes tasks (``tasks``). Every process is a
replicator (``replicator``): it claims tasks and repairs their ledgers (``ledger_repair``) by copying batches between
bookies (``copier``). ``status``, ``fsck`` and ``diagnosis`` report on the cluster and repair nothing themselves.

Nothing here deletes entries: bookies drop over-replicated copies themselves (``bookie/gc``).
"""
