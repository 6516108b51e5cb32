"""The write path: batches appends, replicates them, confirms them in order and changes the ensemble.

Entrance: ``handle.LedgerWriter``. ``machine`` has the rules and does no I/O, ``driver`` performs its actions, with a
``bookie_link`` to each bookie. ``appends`` gathers entries into batches, ``ensemble/`` judges the members,
``ensemble_change`` replaces them. Recovery of a ledger that another client wrote is in ``client/recovery``.
"""
