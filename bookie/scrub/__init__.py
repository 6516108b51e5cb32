"""Scrubbing: reads all stored batches and index rows again, and lists the damaged ones for repair.

``scrubber.Scrubber`` runs the passes, ``scrub_pass`` sets their pace, ``damage_list`` holds the result. Nothing here
repairs: that is the work of re-replication.
"""
