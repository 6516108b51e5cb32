"""Comparison with Apache BookKeeper, and with other revisions of Tallybook.

``comparison.py`` runs rounds over ``workloads.py``; ``cluster.py`` and ``bookkeeper.py`` drive the two systems;
``gates.py`` lists the gates, ``report.py`` and ``plot.py`` make the page. ``revisions.py`` compares the working tree
with another revision. Only ``equipment/`` starts processes.
"""
