"""Faults that strike during a run.

``nemesis`` injects them, as the run's configuration says, with one module for each larger kind. No checks belong here.
"""
