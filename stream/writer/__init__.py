"""The writing side of a stream; see `handle`."""
