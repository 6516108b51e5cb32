"""Errors of adds, as a writer interprets them: no bookie is replaced for a fault of the caller."""

from __future__ import annotations

import pytest

from tallybook.client.writer.actions import Died, Reconnect, Rejoin, ReplacementWanted, SendLater, WriterAction
from tallybook.client.writer.machine import WriterMachine
from tallybook.client.writer.policy import WriterPolicy
from tallybook.core import errors as e
from tallybook.core.answers import AddAnswer
from tallybook.core.batch import encode_batch
from tallybook.core.error_codes import error_classes
from tallybook.core.quorum import Quorum

ENDS, WAITS, CONNECTS, LOSES = "the writer ends", "asked again later", "connected to again", "lost, and replaced"

CALLERS = (
    e.CallerError, e.InvalidArgument, e.EntryTooLarge, e.InvalidConfig, e.NoSuchLedger, e.LedgerExists,
    e.LedgerClosed, e.LedgerFenced, e.LedgerHasWriter, e.Unauthorized, e.ReadBeyondLac, e.Conflict,
    e.ForeignDirectory, e.DirectoryInUse, e.NoSuchBookie, e.ArchiveDenied, e.ForeignPosition, e.OutOfOrder,
    e.NoSuchStream, e.StreamExists, e.StreamClosed, e.StreamEnded, e.StreamFenced, e.StreamGap, e.PositionMismatch,
    e.NoSuchSubscription, e.NoSuchNamespace, e.Unauthenticated, e.AccessDenied, e.NoSuchCluster, e.ArchiveKeyMissing,
    e.LedgerInUse, e.HandleClosed, e.OtherLedger, e.QuotaExceeded,
)  # fmt: skip
EXPECTED: dict[type[e.TallybookError], str] = {
    **dict.fromkeys(CALLERS, ENDS),
    **dict.fromkeys(
        (e.Busy, e.MetadataUnavailable, e.StreamOwned, e.ReaderTooSlow, e.CreditExceeded, e.EnsembleTooLarge), WAITS
    ),
    **dict.fromkeys((e.BookieUnavailable, e.RequestTimeout), CONNECTS),
}
"""All other errors are the fault of the bookie."""


def machine_with_a_batch(batch: bytes) -> WriterMachine:
    rules = WriterPolicy(add_timeout_s=10.0, away_timeout_s=4.0, lag_limit_bytes=10_000, max_changes=1000)
    machine = WriterMachine(1, Quorum(3, 3, 2), ["b1", "b2", "b3"], rules, now=0.0)
    for position in range(3):
        machine.connected(position, 0.0)
    machine.submit(0, 0, 1, batch, 0.0)
    return machine


def good_batch() -> bytes:
    return encode_batch(1, 0, [b"x"], lac=-1, ledger_length=1, written_at_us=0)


def meaning(actions: list[WriterAction]) -> str:
    kinds = {type(action) for action in actions}
    if Died in kinds:
        return ENDS
    if Rejoin in kinds:
        assert ReplacementWanted in kinds
        return LOSES
    assert ReplacementWanted not in kinds
    return {frozenset({SendLater}): WAITS, frozenset({Reconnect}): CONNECTS}[frozenset(kinds)]


@pytest.mark.parametrize("error", error_classes(), ids=lambda error: error.__name__)
def test_every_error_means_to_a_writer_what_its_class_says(error: type[e.TallybookError]) -> None:
    machine = machine_with_a_batch(good_batch())
    actions = machine.refused(0, AddAnswer(1, 0, 1, error.wire_code), 1.0)
    assert meaning(actions) == EXPECTED.get(error, LOSES)
    if machine.error is not None:
        assert type(machine.error) is error
        assert "b1" in machine.error.message
        assert error is not e.EntryTooLarge or f" {len(good_batch())} bytes" in machine.error.message


@pytest.mark.parametrize(("code", "means"), [(199, ENDS), (299, LOSES), (399, LOSES), (999, LOSES)])
def test_an_error_of_a_newer_bookie_means_what_its_number_says(code: int, means: str) -> None:
    machine = machine_with_a_batch(good_batch())
    assert meaning(machine.refused(0, AddAnswer(1, 0, 1, code), 1.0)) == means


def test_a_batch_that_is_malformed_here_is_no_fault_of_the_bookie() -> None:
    damaged = bytearray(good_batch())
    damaged[-1] ^= 1
    machine = machine_with_a_batch(bytes(damaged))
    assert meaning(machine.refused(0, AddAnswer(1, 0, 1, e.InvalidBatch.wire_code), 1.0)) == ENDS
