"""Long-term storage behind the journal: write cache, checkpoint, entry log, index, garbage collection and scrubbing."""
