"""Log lines: an event in fixed words, and fields with one name and one meaning each."""

from __future__ import annotations

import ast
import functools
import io
import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tallybook.runtime.logging import add_to_every_line, is_secret, logger, set_up_logging

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("archive", "bookie", "cli", "client", "gateway", "metadata", "offload", "repair", "runtime", "spark", "stream")
LEVELS = {"debug": 1, "info": 1, "warning": 1, "error": 1, "defect": 2}
"""The number of positional arguments of each."""
MISSPELT = {
    "bookie": "bookie_id",
    "bytes": "one that says of what, such as copied_bytes",
    "client": "client_id",
    "entry": "entry_id",
    "first": "first_entry_id or first_ledger_id",
    "http": "http_address",
    "last": "last_entry_id or last_ledger_id",
    "ledger": "ledger_id",
    "ledgers": "ledger_count or ledger_ids",
    "log": "log_id",
    "reason": "error",
}
"""Names that were used for what has another one."""


class Line:
    """A call that logs."""

    def __init__(self, path: str, node: ast.Call, level: str) -> None:
        self.place = f"{path}:{node.lineno}"
        self.node, self.level = node, level

    @property
    def fields(self) -> list[str]:
        """Names of its fields; of a mapping that is spread, the literal keys."""
        return [keyword.arg for keyword in self.node.keywords if keyword.arg is not None]


def lines_of(path: str, source: str) -> Iterator[Line]:
    for node in ast.walk(ast.parse(source)):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in LEVELS
            and isinstance(node.func.value, ast.Name)
            and node.func.value.id in {"log", "_log"}
        ):
            yield Line(path, node, node.func.attr)


def sources() -> Iterator[tuple[str, str]]:
    for part in PARTS:
        for path in sorted((ROOT / part).rglob("*.py")):
            yield str(path.relative_to(ROOT)), path.read_text()


@functools.cache
def all_lines() -> list[Line]:
    return [line for path, source in sources() for line in lines_of(path, source)]


def documented() -> dict[str, str]:
    table = (ROOT / "docs/operate/logs.md").read_text().partition("## Fields")[2]
    return dict(re.findall(r"^\| `([a-z_]+)` \| (.+) \|$", table, re.MULTILINE))


def test_the_lines_are_seen():
    assert len(all_lines()) > 100
    assert {line.place.partition("/")[0] for line in all_lines()} >= {
        "bookie",
        "client",
        "gateway",
        "offload",
        "repair",
    }


@pytest.mark.parametrize(
    "wrong",
    ['_log.info("read %d", 3)', '_log.info(f"read {x}")', '_log.info("a", ledger=1)', '_log.info("b", surely_new=1)'],
)
def test_a_line_that_breaks_a_rule_is_found(wrong: str):
    [line] = lines_of("planted.py", wrong)
    assert complaints(line)


def complaints(line: Line) -> list[str]:
    found = []
    event = line.node.args[0] if line.node.args else None
    literal = isinstance(event, ast.Constant) and isinstance(event.value, str)
    if not literal and not isinstance(event, ast.Name):
        found.append("its event is put together: what varies belongs into fields")
    elif isinstance(event, ast.Constant) and re.search(r"%[sdr.(]|\{", str(event.value)):
        found.append("its event has room for values: these belong into fields")
    if len(line.node.args) != LEVELS[line.level]:
        found.append("its values have no names")
    for name in line.fields:
        if name in MISSPELT:
            found.append(f"{name} is called {MISSPELT[name]}")
        elif name not in documented():
            found.append(f"{name} is not in docs/operate/logs.md")
        elif is_secret(name):
            found.append(f"{name} would never be shown")
    return [f"{line.place}: {what}" for what in found]


def test_every_line_says_one_event_and_calls_its_fields_as_all_others_do():
    assert [complaint for line in all_lines() for complaint in complaints(line)] == []


def test_every_documented_field_is_in_use():
    used = {name for line in all_lines() for name in line.fields}
    spread = {"lane", "peer", "client_id", "ledger_id", "ledger_ids", "object", "namespace", "new_name", "days_left"}
    assert set(documented()) <= used | spread


def test_nothing_bypasses_the_structured_logger():
    for path, source in sources():
        if path != "runtime/logging.py":
            assert "logging.getLogger(__name__)" not in source, path


def test_every_line_of_a_process_says_which_one_it_is():
    root = logging.getLogger()
    handlers, level, stream = list(root.handlers), root.level, io.StringIO()
    try:
        set_up_logging("INFO", "json", stream)
        log = logger("test")
        log.info("before")
        add_to_every_line(bookie_id="b1")
        log.info("after", ledger_id=7)
        log.info("of another one", bookie_id="b2")
        set_up_logging("INFO", "json", stream)
        log.info("anew")
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
    before, after, other, anew = map(json.loads, stream.getvalue().splitlines())
    assert "bookie_id" not in before
    assert (after["bookie_id"], after["ledger_id"]) == ("b1", 7)
    assert other["bookie_id"] == "b2"
    assert "bookie_id" not in anew
