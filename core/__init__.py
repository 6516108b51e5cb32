"""Common vocabulary of all parts: ids, errors, batches, quorum arithmetic, access rules, limits, settings.

Start with `errors`, `ids`, `batch` and `quorum`; `settings/` has one module per process kind. Pure code: nothing here
opens a file or a socket, reads a clock, draws a random number, or imports another part.
"""
