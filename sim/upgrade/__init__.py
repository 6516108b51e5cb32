"""Upgrade tests: data of earlier revisions must be readable, and clusters of two revisions must keep all promises.

``fixture`` makes and unpacks the fixtures of a release in tests/fixtures; ``mixed`` runs a cluster of two revisions;
``__main__`` is the entrance. See docs/operate/upgrade.md.

``contents``, ``wire_play``, ``zookeeper_nodes``, ``mixed_load`` and ``mixed_streams`` are programs that also run with
the code of earlier revisions. They must import nothing from this folder, and only long-lived modules of the product.
"""
