"""Checks of a whole run: does it make progress after healing, and is what it leaves complete?

``liveness`` and ``audit`` are the entrances, with one module for each larger check. ``archive_oracle`` checks objects
at every change, ``stream_check`` the history of streams. Checks read product state, also private state; they must not
change what the product does.
"""
