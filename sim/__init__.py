"""Deterministic simulation of a whole cluster from one seed: faulty disks, networks, clocks and processes.

    __main__, one_seed, many   command line; one seed with its report; many seeds
    run                        phases of one run, of a cluster (cluster/) on seams that the seed drives (deterministic/)
    configuration/, faults/    what a seed draws: sizes, settings and rates; the nemesis, which injects the faults
    workload/                  what clients do, and the history of what they were told
    oracle/, checks/           checks during a run, which must not change what happens; checks after healing
    bugs/                      bugs planted on purpose: a run must detect each

Not part of a run: ``model/`` searches small worlds exhaustively, ``chaos/`` kills real processes, ``stage/`` holds test
equipment for single components, ``upgrade/`` runs clusters of two revisions.
"""
