"""Performance diagnosis (``tallybook cluster diagnose``): finds the bottleneck of a cluster from metrics.

    samples.py    the metrics of one process at a moment, and their change between two samples
    causes.py     the possible causes, and a finding with its evidence
    bookie.py     rules for bookies; processes.py: for every process; network.py: for the time between both
    verdict.py    all findings, worst first
    sampling.py   the entrance: takes the samples over HTTP

Only ``sampling`` does I/O. A resource is a bottleneck if it is in use most of the time and requests wait long for it.
docs/operate/runbook/performance.md explains each verdict and each threshold.
"""
