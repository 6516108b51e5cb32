"""Upgrades: what an earlier revision has written is read, and clusters of two revisions keep their promises.

``contents``, ``wire_play``, ``zookeeper_nodes``, ``mixed_load`` and ``mixed_streams`` are programs that also run with
the code of earlier revisions: by their path, with that code on theirs. So they use nothing of this folder, and of the
rest only what has been there for long.

``fixture`` makes what tests/fixtures keeps of a release, and unpacks it; ``recorded`` notes what a client and a bookie
said to each other, and has it said again; ``mixed`` runs a cluster of two revisions. docs/upgrade.md tells what for.
"""
