"""Valid values of ledger ids, entry ids and LACs."""

import pytest

from tallybook.core.errors import InvalidArgument
from tallybook.core.ids import MAX_ID, NO_ENTRY, check_entry_id, check_lac, check_ledger_id

CHECKS = [check_ledger_id, check_entry_id, check_lac]


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("value", [0, 1, 2**32, MAX_ID])
def test_every_63_bit_integer_is_an_id_and_comes_back_unchanged(check, value):
    assert check(value) == value


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("value", [-2, -(2**63), MAX_ID + 1, 2**64 - 1, 2**64, True, False, None, 1.0, "1", b"2"])
def test_anything_else_is_refused(check, value):
    with pytest.raises(InvalidArgument):
        check(value)


def test_minus_one_stands_for_no_entry_and_only_a_lac_may_be_that():
    assert check_lac(NO_ENTRY) == NO_ENTRY == -1
    for check in (check_ledger_id, check_entry_id):
        with pytest.raises(InvalidArgument):
            check(NO_ENTRY)
