"""The write-ahead journal of a bookie: a ring of recycled segment files, one group commit a block.

Start with ``journal.py`` (what the bookie calls), then ``format.py`` (what is on the disk),
``replay.py`` (how a torn tail is told from damage) and ``group_commit.py`` (the hot path).
"""
