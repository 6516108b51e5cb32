"""Boot after a loss: journal replay, lost index, missing directories, limbo, and an outdated metadata store.

Each module is one procedure, called by ``process/boot.py``, the collector, or ``bookie init`` and ``rebuild-index``.
``journal_replay`` runs at every boot, the others only after a loss. Nothing here runs on the add path.
"""
