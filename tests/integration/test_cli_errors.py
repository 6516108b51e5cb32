"""What the commands say when a request cannot be served: one sentence, whose fault, and an exit code by kind."""

import os
import pty
import socket
import subprocess

import pytest

USAGE, CALLER, PEER, STORAGE = 2, 4, 5, 6


@pytest.fixture(scope="module")
def closed(cluster) -> int:
    """A closed ledger of three entries."""
    ledger = cluster.create()
    assert cluster("ledger", "append", ledger, "--close", stdin=b"a\nb\nc\n").code == 0
    return ledger


@pytest.mark.parametrize(
    ("words", "code", "kind"),
    [
        (["append", "{closed}"], CALLER, "LedgerClosed"),
        (["read", "{closed}", "--last", "3"], CALLER, "ReadBeyondLac"),
        (["read", "{closed}", "--first", "3"], CALLER, "ReadBeyondLac"),
        (["read", "{closed}", "--first", "2", "--last", "1"], USAGE, "InvalidArgument"),
        (["read", "{closed}", "--first", "-1"], USAGE, "InvalidArgument"),
        (["read", "{closed}", "--last", "9223372036854775808"], USAGE, "InvalidArgument"),
        (["read", "9223372036854775808"], USAGE, "InvalidArgument"),
        (["info", "--", "-1"], USAGE, "InvalidArgument"),
        (["info", "-1"], USAGE, "Usage"),
        (["info", "seven"], USAGE, "Usage"),
        (["read", "9223372036854775807"], CALLER, "NoSuchLedger"),
        (["recover", "4000000"], CALLER, "NoSuchLedger"),
        (["rm", "4000000"], CALLER, "NoSuchLedger"),
        (["create", "--ensemble", "4"], PEER, "NotEnoughBookies"),
        (["create", "--ack-quorum", "4"], USAGE, "InvalidArgument"),
        (["create", "--ensemble", "2", "--write-quorum", "3"], USAGE, "InvalidArgument"),
        (["create", "--ensemble", "0"], USAGE, "InvalidArgument"),
        (["create", "--hmac"], USAGE, "InvalidArgument"),
        (["create", "--password-file", "/nowhere"], USAGE, "InvalidArgument"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_request_that_cannot_be_served_gives_an_error_object(cluster, closed, words, code, kind):
    result = cluster("ledger", *(word.format(closed=closed) for word in words), "--json".join(["", ""]) or "--json")
    assert result.code == code
