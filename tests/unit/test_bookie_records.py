"""Small files and index rows of a bookie: cookie, format file, limbo marker, ledger state."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallybook.bookie.directories.cookie import Cookie, check_bookie_id, decode_cookie
from tallybook.bookie.directories.limbo import Limbo
from tallybook.bookie.ledgers.state import TOMBSTONE, Ledger, LedgerRow, decode_row, encode_row
from tallybook.bookie.storage.text_record import decode_record, encode_record
from tallybook.core.errors import (
    DamagedFile,
    EntryUnknown,
    InvalidConfig,
    InvariantViolation,
    LedgerFenced,
    NoSuchLedger,
)
from tallybook.core.ids import ledger_identity
from tallybook.core.keys import key_verifier

from ..support.damage import flips

COOKIE = Cookie("bookie-1", "6f4c1d0e-0000-4000-8000-000000000001", "cluster-a")
ids = st.integers(-1, 2**63 - 1)
rows = st.builds(
    LedgerRow,
    verifier=st.none() | st.just(b"") | st.binary(min_size=32, max_size=32),
    fenced=st.booleans(),
    limbo=st.booleans(),
    deleted=st.booleans(),
    lac=ids,
    explicit_lac=ids,
    last_held=ids,
    repaired_limbo=st.integers(0, 2**32 - 1),
)


def test_any_flipped_bit_of_a_cookie_is_found_and_the_file_is_named() -> None:
    assert decode_cookie(COOKIE.encode(), "/d/cookie") == COOKIE
    data = COOKIE.encode()
    for damaged in (*flips(data), *(data[:size] for size in range(len(data)))):
        with pytest.raises(DamagedFile, match="/d/cookie"):
            decode_cookie(damaged, "/d/cookie")


def test_a_record_of_another_kind_or_an_older_version_says_what_was_expected_and_what_was_found() -> None:
    for kind, version in (("limbo", 2), ("cookie", 3), ("cookie", 4)):
        with pytest.raises(DamagedFile, match=rf"/d/FORMAT.*limbo 3.*{kind} {version}"):
            decode_record("limbo", 3, encode_record(kind, version, {}), "/d/FORMAT")


def test_a_cookie_with_other_values_than_its_own_is_refused() -> None:
    data = encode_record("cookie", 1, {"bookie_id": "b", "colour": "red"})
    with pytest.raises(DamagedFile, match="colour"):
        decode_cookie(data, "/d/cookie")


def test_a_value_that_would_break_the_line_format_is_never_written() -> None:
    for value in ("", "two words", "line\nbreak", "é"):
        with pytest.raises(InvariantViolation):
            encode_record("cookie", 1, {"bookie_id": value})


@pytest.mark.parametrize("bookie_id", ["", "a b", "x" * 129, "né", "../x/", "a\n"])
def test_a_bookie_id_that_cannot_name_a_bookie_is_refused(bookie_id: str) -> None:
    with pytest.raises(InvalidConfig):
        check_bookie_id(bookie_id)


@given(row=rows, ledger_id=st.integers(0, 2**63 - 1))
def test_a_state_row_reads_back_as_it_was_written(row: LedgerRow, ledger_id: int) -> None:
    assert decode_row(ledger_id, encode_row(ledger_id, row)) == row


ROW = LedgerRow(verifier=key_verifier(b"k"), fenced=True, lac=5, last_held=9)


@pytest.mark.parametrize("row", [ROW, replace(ROW, identity=ledger_identity("a token")), TOMBSTONE])
def test_any_flipped_bit_or_truncation_of_a_state_row_is_found(row: LedgerRow) -> None:
    data = encode_row(7, row)
    assert decode_row(7, data) == row
    for damaged in flips(data):
        with pytest.raises(DamagedFile, match="ledger 7"):
            decode_row(7, damaged)
    for ledger_id, wrong in (*((7, data[:size]) for size in range(len(data))), (7, data + b"\0"), (8, data)):
        with pytest.raises(DamagedFile):
            decode_row(ledger_id, wrong)


def test_a_tombstone_takes_six_bytes() -> None:
    assert len(encode_row(7, TOMBSTONE)) == 6


@given(row=rows)
def test_a_ledger_in_memory_says_what_its_row_says(row: LedgerRow) -> None:
    kept = Ledger(3, row).row()
    assert kept == (TOMBSTONE if row.deleted else replace(row, lac=max(row.lac, row.explicit_lac)))


def test_the_fence_outweighs_limbo_and_deletion_for_ordinary_adds_and_only_deletion_stops_recovery() -> None:
    ledger = Ledger(3, LedgerRow())
    assert (ledger.refuses_add, ledger.refuses_recovery) == (0, 0)
    ledger.set_limbo()
    assert (ledger.refuses_add, ledger.refuses_recovery) == (EntryUnknown.wire_code, 0)
    ledger.set_fenced()
    assert (ledger.refuses_add, ledger.refuses_recovery) == (LedgerFenced.wire_code, 0)
    ledger.note_repaired(1, fence=False)
    assert (ledger.refuses_add, ledger.refuses_recovery) == (LedgerFenced.wire_code, 0)
    ledger.end_limbo()
    assert (ledger.refuses_add, ledger.refuses_recovery) == (LedgerFenced.wire_code, 0)
    ledger.set_deleted()
    assert (ledger.refuses_add, ledger.refuses_recovery) == (LedgerFenced.wire_code, NoSuchLedger.wire_code)


def test_a_repaired_ledger_stays_fenced_because_its_fence_may_be_among_what_was_lost() -> None:
    ledger = Ledger(3, LedgerRow(limbo=True))
    ledger.note_repaired(2, fence=True)
    assert ledger.row() == LedgerRow(limbo=True), "it is not written yet"
    assert ledger.row_to_write() == LedgerRow(fenced=True, repaired_limbo=2)
    ledger.end_limbo()
    assert ledger.row() == ledger.row_to_write() == LedgerRow(fenced=True, repaired_limbo=2)
    ledger.set_deleted()
    assert ledger.row_to_write() == TOMBSTONE


def test_a_repaired_ledger_that_is_open_and_never_had_a_fence_takes_adds_again() -> None:
    ledger = Ledger(3, LedgerRow(limbo=True))
    ledger.note_repaired(2, fence=False)
    assert ledger.row_to_write() == LedgerRow(repaired_limbo=2)
    ledger.end_limbo()
    assert (ledger.row(), ledger.refuses_add) == (LedgerRow(repaired_limbo=2), 0)


def test_a_key_fits_its_verifier_only_and_a_ledger_without_password_takes_the_empty_key_only() -> None:
    locked, open_ledger = Ledger(1, LedgerRow(verifier=key_verifier(b"right"))), Ledger(2, LedgerRow(verifier=b""))
    assert locked.fits(b"right")
    assert locked.fits(b"right")
    assert not locked.fits(b"wrong")
    assert not locked.fits(b"")
    assert open_ledger.fits(b"")
    assert not open_ledger.fits(b"right")
    assert not Ledger(3, LedgerRow()).fits(b"")


def test_limbo_covers_older_ledgers_until_each_was_repaired_after_the_last_event() -> None:
    once = Limbo().again(id_counter=10)
    assert once.covers(9, repaired=0)
    assert not once.covers(10, repaired=0)
    assert not once.covers(9, repaired=1)
    twice = once.again(id_counter=20)
    assert twice.covers(9, repaired=1)
    assert twice.covers(19, repaired=0)
    assert not Limbo().covers(0, repaired=0)
