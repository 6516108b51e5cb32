"""Fuzzing of all decoders: targets, inputs that are kept, and the search for more. docs/fuzzing.md has more."""
