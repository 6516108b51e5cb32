"""Servers and measurements of this machine for benchmarks and tests.

``programs.py`` starts processes that end with their starter, ``bookies.py`` bookies that can be killed and restarted,
``zookeeper_server.py`` a ZooKeeper; ``local_bookie.py`` runs a bookie in this process; ``machine.py``, ``proc.py``
and ``processor_time.py`` read facts about the machine and its processes. No load and no gate belongs here.
"""
