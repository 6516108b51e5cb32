"""Comparison with Apache BookKeeper, NATS JetStream and Redis Streams, and with other revisions of Tallybook.

``comparison.py`` runs rounds over ``workloads.py``; ``cluster.py`` drives Tallybook, ``peer.py`` and ``bookkeeper.py``
the other system. ``gates.py`` lists the gates, ``report.py`` and ``plot.py`` make the page. ``peers.py`` runs rounds
with several peers and makes their page; ``revisions.py`` compares the working tree with another revision. Only
``equipment/`` starts processes.
"""
