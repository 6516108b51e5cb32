"""Deterministic simulation of a whole cluster from one seed: faulty disks, networks, clocks and processes, and the
checks that must hold at every step.
"""
