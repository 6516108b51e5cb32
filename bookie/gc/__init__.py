"""Garbage collection: drops ledgers and copies that need not be kept, and frees the space of entry logs.

``collector.GarbageCollector`` runs the passes. ``plan`` and ``ledgers/over_replicated`` decide what may be dropped,
``dropping.LedgerDropper`` drops it, ``reclaimer.EntryLogReclaimer`` removes entry logs, ``compaction_plan`` selects
those worth compacting, and ``entry_log_compaction`` copies live batches out of them. ``suspect_checks`` detects a
restored metadata store between passes. Nothing here deletes metadata.
"""
