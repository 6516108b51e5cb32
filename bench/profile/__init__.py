"""Processor time of an entry, by process and by step (docs/understand/cost-of-an-entry.md).

``__main__.py`` runs the loads of ``loads.py`` through ``load_run.py``. ``recorder.py`` samples stacks with ``py-spy``
and ``perf``, and reads the processor time of threads. The rest is pure: ``stacks.py`` and ``native_stacks.py`` parse
samples, ``steps.py`` maps a stack to a step, ``attribution.py`` does the arithmetic, and ``page.py`` writes the
page.

``waterfall_run.py`` traces single calls with spans that ``span_endpoint.py`` receives; ``waterfall.py``, pure, orders
their stages.
"""
