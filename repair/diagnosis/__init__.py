"""Why a cluster is as fast as it is: what each process was busy with, and what was waited for.

    samples.py    the numbers of one process at a moment, and how they changed between two
    causes.py     what a bottleneck can be, and a finding with its evidence
    bookie.py     what the numbers of a bookie say; the same in processes.py for all others, and in network.py of both
    verdict.py    all findings, worst first: pure, from samples
    look.py       takes the samples, over HTTP

The method is the same everywhere: of each resource, which part of the time it was in use; of who waits for it, for how
long; and only where both are high it is a bottleneck. docs/diagnosis.md explains each verdict and each threshold.
"""
