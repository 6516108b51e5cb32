"""Stored positions of readers; `handle` is what a user holds, `record` has the rules."""
