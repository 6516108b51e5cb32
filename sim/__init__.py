"""Deterministic simulation of a whole cluster from one seed: faulty disks, networks, clocks and processes.

    __main__, one_seed, many   command line; one seed with its report; many seeds
    run        phases of one run
    deterministic/   event loop, clock, disk and network, which depend on the seed only
    cluster/   bookies, client processes, metadata store and object store on simulated disks and networks
    configuration/   what a seed draws: sizes, settings and rates of faults
    faults/    the nemesis, which injects faults
    workload/  what clients do, and the history of what they were told
    oracle/    checks during a run; it must not change what happens
    checks/    checks after healing
    bugs/      bugs planted on purpose: a run must detect each

Not part of a run: ``model/`` searches small worlds exhaustively, ``chaos/`` kills real processes, ``stage/`` holds test
equipment for single components, ``upgrade/`` runs clusters of two revisions.
"""
