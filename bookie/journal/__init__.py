"""The write-ahead journal of a bookie: a ring of recycled segment files; each group commit is one block.

``journals.py`` combines the journals of several disks. Start with ``journal.py`` (the interface), then ``format.py``
(the bytes on the disk) and ``group_commit.py`` (the hot path). After a crash, ``replay.py`` reads the ring, and
``torn_tail.py`` tells a torn tail from damage.
Nothing here knows ledgers: a record is bytes with a kind.
"""
