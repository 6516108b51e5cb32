"""Benchmarks of streams: `python -m tallybook.bench.streams`."""
