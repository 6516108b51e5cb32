"""Log records as lines of text."""

import json
import logging


def line_of(record: logging.LogRecord) -> str:
    """The event of a record and its fields, formatted as in the text log."""
    fields = getattr(record, "tallybook_fields", {})
    return " ".join((record.getMessage(), *(f"{name}={_quoted(str(value))}" for name, value in fields.items())))


def _quoted(text: str) -> str:
    return text if text and not any(c in text for c in ' "=') else json.dumps(text)
