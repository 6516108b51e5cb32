"""What a seed decides: the configuration of its run, and the faults that strike.

``run_configuration`` draws the configuration; ``*_configuration`` draw parts of it and ``mixes`` lists fault mixes.
``nemesis`` injects the faults, with one module for each larger kind. ``injected_damage`` logs damage to durable data,
which alone excuses a loss. No checks belong here.
"""
