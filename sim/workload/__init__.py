"""The actions of the clients of a simulated run, and the history of the answers that they got.

``ledgers`` is the entrance: it runs every actor in a process of its own, and is used by the actors of the other modules
(producers, offloaders, repairers ...). ``history`` and ``stream_history`` record operations and results; they are pure,
so that chaos runs use them, too. Faults do not belong here.
"""
