"""The server process of a bookie: boot, assembly of the parts, registration, and HTTP endpoints.

``server.serve`` is the entrance; ``boot.boot`` makes a ``Bookie`` from its data directory, and ``assembly`` connects
its parts. This is the only room that knows all of them. Nothing here runs per entry.
"""
