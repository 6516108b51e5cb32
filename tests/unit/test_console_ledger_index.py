"""The index of ledgers in the console, and ids that JavaScript cannot represent."""

from __future__ import annotations

import json

from tallybook.core.ids import MAX_ID
from tallybook.core.quorum import Quorum
from tallybook.gateway.console import ledger_index
from tallybook.gateway.console.ledger_index import LedgerIndex
from tallybook.metadata.ledger.model import Fragment, LedgerMetadata
from tallybook.runtime.http.endpoints import MAX_JSON_NUMBER, answered


def test_an_index_keeps_the_ledgers_with_the_highest_ids_and_counts_all(monkeypatch):
    monkeypatch.setattr(ledger_index, "MAX_INDEXED", 3)
    index = LedgerIndex()
    for ledger_id in range(5):
        # The order of creation is not that of ids: clients may choose ids.
        created_at_ms = 1_000 - ledger_id
        index.add(LedgerMetadata(ledger_id, Quorum(1, 1, 1), (Fragment(0, ("b1",)),), "c", created_at_ms))
    assert (index.total, len(index)) == (5, 3)
    assert [each.ledger_id for each in index.find("newest")] == [2, 3, 4]
    assert [each.ledger_id for each in index.find("oldest")] == [4, 3, 2]


def test_numbers_that_javascript_cannot_represent_are_strings_in_answers():
    ids = [1, MAX_JSON_NUMBER, MAX_JSON_NUMBER + 1, MAX_ID]
    told = {"next": MAX_ID, "ledgers": [{"ledger_id": each} for each in ids], "pair": (MAX_ID, True), "text": "1" * 20}
    body = json.loads(bytes(answered(told).body))
    assert [each["ledger_id"] for each in body["ledgers"]] == [
        1,
        MAX_JSON_NUMBER,
        str(MAX_JSON_NUMBER + 1),
        str(MAX_ID),
    ]
    assert (body["next"], body["pair"], body["text"]) == (str(MAX_ID), [str(MAX_ID), True], "1" * 20)
