"""Fuzzing of all decoders: targets, kept inputs, and the search for new ones. See docs/project/fuzzing.md."""
