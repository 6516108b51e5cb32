"""ZooKeeper nodes that no process of ours writes are reported as damaged."""

from __future__ import annotations

import pytest

from tallybook.core.errors import DamagedFile
from tallybook.metadata.zookeeper import layout


@pytest.mark.parametrize("name", ["-001", "+00f", "0x1f", "1_00", " 001", "00F1", "00001", "8000", "١٢٣٤"])
def test_a_node_among_ledgers_that_no_ledger_lies_in_is_damage(name: str):
    with pytest.raises(DamagedFile):
        layout.child_range(0, 0, name, "/ledgers")


@pytest.mark.parametrize("node", ["r-", "f-", "r-a%2Fb", "f-a%2Fb"])
def test_a_node_among_records_that_no_name_leads_to_is_damage(node: str):
    with pytest.raises(DamagedFile):
        layout.record_entries([node], "a", "/records")


@pytest.mark.parametrize("data", [b"", b"-1", b"1_0", b"9" * 5_000, "²".encode()])
def test_a_node_that_holds_no_number_says_so(data: bytes):
    assert layout.number_of(data) is None
