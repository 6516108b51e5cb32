"""Exactly-once delivery of batches into a stream, for Spark and the gateway.

Entrance: `deliveries.Deliveries`. `record` has the stored state of a batch and does no I/O. Ordinary appends do not
pass through here.
"""
