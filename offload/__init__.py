"""The offloader: moves closed ledgers into the archive, releases their copies, and maintains the bucket.

`open_archive` opens what it needs, `service` runs it and elects the leader, `offloader` is one pass. `policy` decides
from metadata what is archived and how it is packed, `mover` writes objects, `verify`, `rebuild`, `rekey` and `relocate`
are operator commands. `bucket/` maintains the manifest and removes orphans. Only the leader should work; every step is
safe without. Nothing here serves readers, and nothing copies entries between bookies.
"""
