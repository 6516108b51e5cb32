"""The machines of a simulated run: bookies, client processes, network access, metadata store and object store.

``process`` (a process that can be killed and frozen) and ``bookie_node`` (a bookie through its restarts) are the
entrances. Product code runs here on simulated disk, clock, network and stores; the workload and the faults do not
belong here.
"""
