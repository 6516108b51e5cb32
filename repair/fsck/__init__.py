"""``tallybook fsck``: a consistency check of metadata, bookies and the archive bucket.

Entrance: ``fsck.Fsck``, which runs one checker for each area (``metadata``, ``copies``, ``bucket``). A checker yields
findings (``finding``) and changes nothing; only ``Fsck`` applies fixes, and only those that cannot lose data.
"""
