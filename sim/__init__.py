"""Deterministic simulation of a whole cluster from one seed: faulty disks, networks, clocks and processes, and the
checks that must hold at every step.

    run, one, many     a seed, with its report; many of them
    swarm, themes      what a seed draws: sizes, faults, how often they strike
    node, process      bookies and client processes of the cluster; nemesis: who harms them
    workload, pens     what its clients do
    god, history, ...  what is checked, meanwhile and afterwards
    bugs               rules broken on purpose, to see that it is noticed

Beside it: ``model`` searches small worlds to their end, ``chaos`` kills real processes, ``stage`` is the equipment of
tests that put one part before what it has to meet.
"""
