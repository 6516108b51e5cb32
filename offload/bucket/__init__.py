"""Maintenance of the bucket: manifest, orphans, sparse objects, copy of the stream records.

`janitor` is the entrance. `decisions` has the pure rules for what counts and what may be removed, `orphans` tracks
unreferenced objects, `unknown_objects` reads them before removal, `dead_space` finds sparse objects. Nothing here
archives ledgers.
"""
