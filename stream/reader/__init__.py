"""Reads streams: from a start, over all segments, and then as the stream grows.

Entrance: `handle.StreamReader`. `reading` goes from segment to segment, `seek` finds where to start, `segment_end`
reads the end of a segment, `tails` shares the reading of an open segment between readers. Nothing here changes a
stream; cursors are in `stream/subscription`.
"""
