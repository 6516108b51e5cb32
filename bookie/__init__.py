"""One storage server: it takes batches, makes them durable in its journal, serves them back, and moves them to
long-term storage in the background.
"""
