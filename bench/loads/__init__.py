"""Single loads on a cluster or a bookie, most of them programs that print one line of JSON.

``ensemble_change.py`` and ``recovery.py`` measure failures, ``open_ledgers.py`` and ``many_ledgers.py`` many
ledgers; ``steady_reads.py`` and ``tail_reads.py`` read while ``bench/profile`` samples them, and ``traced_calls.py``
sends it spans; ``steady_adds.py`` appends while something else happens, and ``windows.py`` evaluates its latencies by
time. Nothing here judges figures. The loads of ``tallybook bench`` are in ``cli/measure``.
"""
