"""Metadata of one ledger: a frozen value and its transitions. Pure functions only: no store, no clock.

``model`` is the entrance. ``archived`` and ``repaired`` have the transitions of the archive and of repairs,
``untrusted_copies`` tells which copies readers must not trust yet, ``describe`` formats metadata as JSON.
"""
