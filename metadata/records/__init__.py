"""Named records: small JSON values in the metadata store, besides the ledgers.

``update`` is the entrance: the compare-and-set loop for records. ``format`` and ``json_errors`` check their encoding.
The other modules define one record each: ``leader`` (leader election), ``bookie_modes``, ``replaced_bookies``,
``restored_store``, ``security_required``. Records of one part only belong to that part.
"""
