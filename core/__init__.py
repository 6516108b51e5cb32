"""The vocabulary of Tallybook: ids, errors, the batch, quorum arithmetic, limits, settings.

Pure code. Nothing here opens a file or a socket, reads a clock or draws a random number,
and nothing here imports another part of the project.
"""
