"""The reading side of a stream; see `handle`."""
