"""Values that describe a query: its bounds, its snapshot, and the partitions that its tasks read.

``snapshot.py`` and ``record_snapshot.py`` are the ranges of entries and of records that a query reads, ``bounds.py``
says where a query of streams starts and ends, ``partitions.py`` cuts ranges into tasks, ``gaps.py`` describes what is
missing. All are plain values, which Spark pickles to its tasks: nothing here opens a cluster, an archive or a stream.
"""
