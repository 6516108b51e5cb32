"""The directories of a bookie on disk: layout, identity (cookies), locks, limbo marker, free space.

``layout.claim`` is the entrance: it locks and checks the data directory before anything else is opened. Nothing here
reads journals, entry logs or the index beyond what is needed to recognise them.
"""
