"""The stream janitor: deletes expired and truncated segments and deleted streams, and finishes interrupted changes.

Entrance: `janitor.StreamJanitor`, which makes one pass over the streams; `stream/service` repeats it in the process
that leads. `abandoned_writers` ends segments that a killed writer left open. Writers and readers do not depend on it.
"""
