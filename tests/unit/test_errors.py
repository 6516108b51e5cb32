"""The error classes: complete, documented, and with fixed numbers."""

import re
from pathlib import Path

import pytest

from tallybook.core import errors
from tallybook.core.error_codes import error_class, error_from_wire
from tallybook.core.errors import (
    OK_CODE,
    Busy,
    EnsembleTooLarge,
    EntryAbsent,
    EntryCorrupt,
    EntryUnknown,
    Fault,
    InvariantViolation,
    NewerFormat,
    Outcome,
    RequestTimeout,
    TallybookError,
)

# A number between processes is never changed and never used again: this list only ever grows.
WIRE_CODES = {
    "TallybookError": 1,
    "CallerError": 100,
    "InvalidArgument": 101,
    "EntryTooLarge": 102,
    "InvalidBatch": 103,
    "InvalidConfig": 104,
    "NoSuchLedger": 105,
    "LedgerExists": 106,
    "LedgerClosed": 107,
    "LedgerFenced": 108,
    "LedgerHasWriter": 109,
    "Unauthorized": 110,
    "ReadBeyondLac": 111,
    "Conflict": 112,
    "ForeignDirectory": 113,
    "DirectoryInUse": 114,
    "NoSuchBookie": 115,
    "ArchiveDenied": 116,
    "ForeignPosition": 117,
    "OutOfOrder": 118,
    "NoSuchStream": 119,
    "StreamExists": 120,
    "StreamClosed": 121,
    "StreamEnded": 122,
    "StreamFenced": 123,
    "StreamOwned": 124,
    "StreamGap": 125,
    "ReaderTooSlow": 126,
    "PositionMismatch": 127,
    "NoSuchSubscription": 128,
    "NoSuchNamespace": 129,
    "NoSuchCluster": 135,
    "LedgerInUse": 136,
    "HandleClosed": 139,
    "Unauthenticated": 130,
    "AccessDenied": 131,
    "CreditExceeded": 140,
    "QuotaExceeded": 143,
    "ArchiveKeyMissing": 141,
    "OtherLedger": 142,
    "PeerError": 200,
    "Busy": 201,
    "BookieUnavailable": 202,
    "RequestTimeout": 203,
    "ProtocolViolation": 204,
    "StaleIncarnation": 205,
    "BookieReadOnly": 206,
    "NotEnoughBookies": 207,
    "RecoveryFailed": 208,
    "MetadataUnavailable": 209,
    "MetadataConflict": 210,
    "MetadataOutcomeUnknown": 211,
    "ArchiveUnavailable": 212,
    "ArchiveBusy": 213,
    "NoCommonVersion": 214,
    "EnsembleTooLarge": 215,
    "PeerUnavailable": 216,
    "StorageError": 300,
    "EntryAbsent": 301,
    "EntryCorrupt": 302,
    "EntryUnknown": 303,
    "DataMissing": 304,
    "DamagedFile": 305,
    "DiskFailed": 306,
    "DiskFull": 307,
    "OutOfFiles": 308,
    "ObjectMissing": 309,
    "ObjectDamaged": 310,
    "EnvelopeDamaged": 311,
    "NewerFormat": 312,
    "InvariantViolation": 900,
}


def tree(root=TallybookError):
    """Every class of ``core.errors`` below ``root``, each one before its children."""
    children = [child for child in root.__subclasses__() if child.__module__ == errors.__name__]
    return [root, *(found for child in children for found in tree(child))]


CLASSES = tree()
each_class = pytest.mark.parametrize("error", CLASSES, ids=lambda error: error.__name__)


def test_the_wire_codes_are_unique_and_are_those_that_were_frozen():
    assert {error.__name__: error.wire_code for error in CLASSES} == WIRE_CODES
    assert len(set(WIRE_CODES.values())) == len(WIRE_CODES)
    assert OK_CODE not in WIRE_CODES.values()


@each_class
def test_every_class_says_whose_fault_whether_to_retry_and_the_effect_and_survives_the_wire(error):
    assert isinstance(error.fault, Fault)
    assert type(error.retriable) is bool
    assert isinstance(error.outcome, Outcome)
    assert type(error.__dict__.get("wire_code")) is int, "a class must have a code of its own"
    assert error.__doc__
    rebuilt = error_from_wire(error.wire_code, "ledger 7 is there")
    assert type(rebuilt) is error
    assert rebuilt.message.endswith("ledger 7 is there")


def test_the_documentation_lists_the_kinds_of_errors():
    page = Path(__file__).parents[2].joinpath("docs/reference/formats/wire.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| (`.*`) \|$", page.partition("\n## Codes\n")[2], re.MULTILINE)
    listed = {name: set(re.findall(r"\w+", kinds)) for name, kinds in rows}
    branches = {100: errors.CallerError, 200: errors.PeerError, 300: errors.StorageError}
    assert listed == {
        error.__name__: {child.__name__ for child in children}
        for error in CLASSES
        if error is not TallybookError and error not in branches.values() and (children := tree(error)[1:])
    }
    for code, branch in branches.items():
        assert {error for error in CLASSES if code <= error.wire_code < code + 100} == set(tree(branch))


def test_faults_follow_the_three_branches():
    faults = {"CallerError": Fault.CALLER, "PeerError": Fault.PEER, "StorageError": Fault.STORAGE}
    of_the_caller = {
        EnsembleTooLarge: "the bookies that there are do their part",
        NewerFormat: "what is stored is as good as ever",
    }
    for name, fault in faults.items():
        assert {error.fault for error in tree(getattr(errors, name)) if error not in of_the_caller} == {fault}
    for error, reason in of_the_caller.items():
        assert error.fault is Fault.CALLER, reason
    assert InvariantViolation.fault is Fault.INTERNAL


def test_an_effect_may_be_unknown_only_where_the_answer_can_get_lost():
    unknown = {error.__name__ for error in CLASSES if error.outcome is Outcome.UNKNOWN}
    assert unknown == {
        "PeerUnavailable",
        "BookieUnavailable",
        "RequestTimeout",
        "ProtocolViolation",
        "MetadataOutcomeUnknown",
        "DiskFailed",
        "InvariantViolation",
    }


def test_absent_corrupt_and_unknown_are_not_kinds_of_one_another():
    answers = (EntryAbsent, EntryCorrupt, EntryUnknown)
    assert all(not issubclass(one, other) for one in answers for other in answers if one is not other)


def test_busy_brings_its_hint_along():
    rebuilt = error_from_wire(Busy.wire_code, "too much", 250)
    assert isinstance(rebuilt, Busy)
    assert (rebuilt.message, rebuilt.retry_after_ms) == ("too much", 250)
    assert Busy().retry_after_ms == 0


@pytest.mark.parametrize("code", [0, 2, 99, 999, -1, 2**31])
def test_a_code_of_a_newer_peer_is_an_error_of_unknown_outcome(code):
    assert error_class(code) is TallybookError
    rebuilt = error_from_wire(code, "from the future")
    assert rebuilt.outcome is Outcome.UNKNOWN
    assert str(code) in rebuilt.message


def test_an_outcome_may_be_given_at_the_raise_and_the_class_keeps_its_own():
    assert RequestTimeout("late", outcome=Outcome.NOT_DONE).outcome is Outcome.NOT_DONE
    assert RequestTimeout("late").outcome is Outcome.UNKNOWN
    assert TallybookError().message == ""
