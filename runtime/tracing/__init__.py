"""Tracing: spans of adds, reads and calls, exported with OpenTelemetry.

``port`` is the entrance: all parts use only it. ``opening`` makes a tracer from the option ``traces``; ``otel`` is the
only module that imports OpenTelemetry, and only if traces are on. ``catalog`` is the form in which a part declares
its spans. Nothing here knows which spans there are; none holds payloads or keys.
"""
