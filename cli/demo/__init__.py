"""``tallybook demo``: writes real data to a local cluster while processes are killed, and verifies it each time.

Entrance: ``demo.demo``. Each part of the demo is a module: ``writer`` and ``producer`` are child processes,
``archive``, ``stream`` and ``repair`` are acts, ``query``, ``spark`` and ``spark_stream`` run Spark, ``view`` prints.
It uses only public APIs and ``local``.
"""
