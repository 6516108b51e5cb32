"""Which errors of metadata updates end a writer."""

import pytest

from tallybook.client.writer.ensemble.update_errors import NextStep, WriterUpdate, next_step
from tallybook.core.errors import (
    InvalidArgument,
    InvariantViolation,
    LedgerClosed,
    LedgerFenced,
    MetadataConflict,
    MetadataOutcomeUnknown,
    MetadataUnavailable,
    NoSuchLedger,
    ProtocolViolation,
    TallybookError,
)

CONTINUE, RESOLVE, END = NextStep.CONTINUE, NextStep.RESOLVE, NextStep.END

# The error of an update, and what the writer does after it: for a check, a change, a change in doubt, missed ranges.
STEPS: list[tuple[type[TallybookError], NextStep, NextStep, NextStep, NextStep]] = [
    (MetadataUnavailable, CONTINUE, CONTINUE, RESOLVE, CONTINUE),
    (MetadataConflict, CONTINUE, CONTINUE, RESOLVE, CONTINUE),
    (MetadataOutcomeUnknown, CONTINUE, RESOLVE, RESOLVE, CONTINUE),
    (InvalidArgument, END, CONTINUE, RESOLVE, END),
    (LedgerFenced, END, END, END, END),
    (LedgerClosed, END, END, END, END),
    (NoSuchLedger, END, END, END, END),
    (ProtocolViolation, CONTINUE, END, END, END),
    (InvariantViolation, END, END, END, END),
]


@pytest.mark.parametrize(
    ("kind", "check", "change", "in_doubt", "missed"),
    STEPS,
    ids=lambda each: each.__name__ if isinstance(each, type) else each.name,
)
def test_what_a_writer_does_after_a_failed_update(kind, check, change, in_doubt, missed):
    error = kind("it failed")
    assert next_step(WriterUpdate.CHECK_OPEN, error) is check
    assert next_step(WriterUpdate.CHANGE_ENSEMBLE, error) is change
    assert next_step(WriterUpdate.CHANGE_ENSEMBLE, error, in_doubt=True) is in_doubt
    assert next_step(WriterUpdate.RECORD_MISSED, error) is missed
