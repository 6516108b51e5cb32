"""Chaos with real processes: bookies, clients and ZooKeeper that are killed, stopped and cut off (docs/chaos.md).

In the order in which to read them::

    proxy       the network in between, which holds, delays and breaks what passes
    processes   bookies and loads as child processes: started, killed, stopped, started again
    load        what a load process does: writers, readers, recoverers
    watched     connections that note what bookies promise
    records     the log in which a load process keeps what it did and was told
    nemesis     what goes wrong and when, drawn from a seed
    run         the phases of a run
    audit       everything read again and compared
"""
