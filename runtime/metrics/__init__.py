"""Metrics: counters and histograms that parts keep, their catalogs, and the Prometheus text format.

``part_metrics`` is the entrance for a part that has metrics; ``registry`` collects all parts of a process and
``rendering`` writes the text; ``heap`` reads the allocators' counters. The text of other processes is read by
``http/scrape.py``. A part counts with plain numbers, ``histogram`` or ``usage``. Names chosen by users (ledgers,
streams) are never labels.
"""
