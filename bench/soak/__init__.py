"""Soak test: a cluster that runs for long with all features on, `python -m tallybook.bench.soak`.

docs/project/soak.md has the results. ``cluster.py`` starts the processes and kills bookies, ``load.py`` is the client,
``watch.py`` samples figures of the processes, ``slope.py`` judges growth, ``work.py`` lists what must have happened,
``book.py`` which entries must exist. Time and faults are real: what a seed reproduces is in ``sim``.
"""
