"""Chaos runs: real bookies, clients and ZooKeeper are killed, stopped and disconnected (docs/project/chaos.md).

In reading order::

    proxy       TCP proxy that blocks, delays and breaks connections
    processes   bookies and loads as child processes
    load        what a load process does: writers, readers, recoverers
    watched     connections that record what bookies promise
    records     log in which a load process records operations and results
    nemesis     faults and their times, drawn from a seed
    run         phases of a run
    audit       reads everything again and compares
"""
