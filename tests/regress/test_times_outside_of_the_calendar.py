"""A time outside of the calendar does not prevent reading the rest."""

from __future__ import annotations

import pytest

from tallybook.cli.commands.ledger import describe as ledger_for_people
from tallybook.core.quorum import Quorum
from tallybook.gateway.ledgers.messages import ledger_message
from tallybook.metadata.ledger.model import Fragment, LedgerMetadata


@pytest.mark.parametrize("created_at_ms", [2**63 - 1, -(2**63)])
def test_a_ledger_that_was_made_outside_of_the_calendar_can_be_described(created_at_ms: int):
    metadata = LedgerMetadata(7, Quorum(1, 1, 1), (Fragment(0, ("a",)),), "creator", created_at_ms)
    year = 9999 if created_at_ms > 0 else 1
    assert ledger_message(metadata).created_at.ToDatetime().year == year
    assert str(ledger_for_people(metadata)["created_at"]).startswith(f"{year:04}-")
