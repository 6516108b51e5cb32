"""Benchmarks of storage maintenance: `python -m tallybook.bench.storage`.

Space freed by garbage collection (`space`), catch-up readers compared with the peer (`catch_up`), repair after a bookie
failure (`repair`), bit rot (`rot`), a full disk (`brim`), a million small ledgers (`many`). Each part has a cluster of
its own; loads are separate processes, like those of users. Only `gates` judges figures; servers are started by
`bench/equipment`.
"""
