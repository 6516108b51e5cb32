"""A cluster that runs for long with everything on: `python -m tallybook.bench.soak` (docs/soak.md).

In the order in which to read them::

    slope      how fast something grows, and whether that is nothing (pure)
    watch      what the kernel and the processes tell, again and again
    work       what must have happened (pure)
    book       which entries must be there (pure)
    load       writers, readers and whoever deletes, of one client
    cluster    the processes of a run, and the bookies that are killed and started again
"""
