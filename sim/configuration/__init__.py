"""The configuration that a seed draws before its run: sizes, settings, and the faults with their rates.

``run_configuration`` is the entrance; ``*_configuration`` draw parts of it and ``mixes`` lists fault mixes. Nothing
here acts during a run.
"""
