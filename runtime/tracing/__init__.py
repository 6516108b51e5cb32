"""Tracing: spans of adds, reads and calls, exported with OpenTelemetry.

``port`` is the entrance: all parts use only it. ``opening`` makes a tracer from the option ``traces``; ``otel`` is the
only module that imports OpenTelemetry, and only if traces are on. ``catalogue`` lists all spans and attributes; they
never hold payloads or keys.
"""
