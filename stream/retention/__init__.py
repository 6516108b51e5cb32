"""The stream janitor: deletes expired and truncated segments and deleted streams, and finishes interrupted changes.

Entrance: `service.run_janitor`, for the process that leads; `janitor` has one pass over the streams,
`abandoned_writers` ends segments that a killed writer left open. Writers and readers do not depend on it.
"""
