"""Chooses bookies: for new ensembles (``ensembles``) and for failed members (``replacement``).

``replacement_probe`` checks that a replacement answers, and ``candidates`` draws bookies for both choices.
``racks`` spreads write sets over racks, ``quarantine`` avoids bookies that failed recently. Nothing here changes
metadata or sends entries; the writer, the recovery and the repair service act on the choice.
"""
