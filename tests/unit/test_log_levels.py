"""Log levels apply to our own lines: they neither silence the audit log nor enable debug output of libraries."""

import io
import json
import logging
from collections.abc import Iterator

import pytest

from tallybook.core.access import Permission, Principal
from tallybook.runtime.audit import audit
from tallybook.runtime.logging import logger, set_up_logging

PASSWORD = "tally:a-password-of-zookeeper"


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    root, audits = logging.getLogger(), logging.getLogger("tallybook.audit")
    before = list(root.handlers), root.level, audits.level
    try:
        yield io.StringIO()
    finally:
        root.handlers[:], level, audits_level = before[0], before[1], before[2]
        root.setLevel(level)
        audits.setLevel(audits_level)


def test_libraries_never_log_more_than_at_info(stream):
    """kazoo logs each request at DEBUG, and so the password that it shows to ZooKeeper."""
    set_up_logging("DEBUG", "json", stream)
    logger("test").debug("ours")
    for library in ("library.client", "tallybookish", "another"):
        logging.getLogger(library).debug("Sending request(xid=-4): Auth(auth_type=0, auth=%r)", PASSWORD)
        logging.getLogger(library).info("connected")
    events = [json.loads(line)["event"] for line in stream.getvalue().splitlines()]
    assert events == ["ours", *["connected"] * 3]
    assert PASSWORD not in stream.getvalue()


@pytest.mark.parametrize("level", ["DEBUG", "INFO", "WARNING", "ERROR"])
def test_the_audit_log_is_written_at_every_level(stream, level):
    set_up_logging(level, "json", stream)
    audit("delete ledger", Principal("writers", frozenset(Permission)), "ipv4:127.0.0.1:1", ledger_id=7)
    [line] = map(json.loads, stream.getvalue().splitlines())
    assert (line["part"], line["event"], line["ledger_id"]) == ("audit", "delete ledger", 7)


def test_no_such_level_is_reported(stream):
    with pytest.raises(ValueError, match="LOUD"):
        set_up_logging("LOUD", "text", stream)
