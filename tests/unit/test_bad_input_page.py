"""docs/bad-input.md and the tests belong together: every kind of bad input has a line, with tests that exist."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "bad-input.md"
ROW = re.compile(r"^\| ([^|]+) \| [^|]+ \| (`[^|]+`) \|$", re.MULTILINE)

INPUTS = {
    "no certificate",
    "an expired certificate",
    "a certificate of another authority, or signed by itself",
    "a certificate for another host",
    "the right authority and the wrong role, or none",
    "no token, one that expired, is not valid yet or is meant for others, of no algorithm, very long, not in ASCII",
    "two tokens",
    "plain bytes to a port with TLS, TLS to one without",
    "HTTP/1.1, random bytes, broken frames",
    "half a connection",
    "a preface that does not come, or comes slowly",
    "calls begun and reset as fast as that goes",
    "a thousand streams",
    "more connections than there may be",
    "a flood of pings",
    "giant metadata",
    "a method that does not exist",
    "a compressed bomb",
    "a message as large as may be, and one byte more",
    "a length of four gigabytes",
    "a message that is cut, or empty",
    "unknown fields",
    "fields of the wrong type, text that is not UTF-8, deep nesting",
    "millions of fields",
    "ids that are negative, beyond 63 bits or missing; the highest ones",
    "an entry of no bytes, of one, as large as may be, and larger",
    "a wrong digest",
    "lengths, a LAC or ids in a batch that cannot be",
    "a batch of no entries, or whose lengths do not add up",
    "a batch across a stripe",
    "replication that cannot be: none, Qa > Qw > E, more than there are, somebody twice",
    "a deadline of zero, in the past, or far away",
    "a client that is gone, or gives up, at any moment",
    "a range that ends before it begins, or has no end",
    "a tail whose reader takes nothing",
    "an add to a ledger that is closed, fenced, deleted or unknown",
    "a wrong key of a ledger",
    "a call meant for an earlier life of a bookie",
    "a stream half closed in the middle",
    "a client that never takes its acks",
    "replies that nobody takes",
    "no or bad proof of who it is, on any route",
    "a method overridden; HEAD, OPTIONS, TRACE",
    "paths that try to be others",
    "a huge query",
    "ids that are no numbers, or too large",
    "parameters that are there twice",
    "a body of a gigabyte",
    "chunks that lie",
    "two lengths (request smuggling)",
    "line breaks in headers and names",
    "a head or a body that comes byte by byte",
    "silence, and answers that nobody reads",
    "too many connections",
    "what is no HTTP",
    "names that are HTML",
    "pages of other origins (CORS, CSRF)",
    "a foreign name that leads here (DNS rebinding)",
    "names that would break metrics, or be a line of them each",
    "records that are flipped, cut, zeroed or of another type",
    "records of a newer version",
    "lengths and offsets that lead out of a file or back into it, or are negative",
    "counts and sizes that would fill memory",
    "nothing but zeros",
    "files swapped between bookies, ledgers or places",
    "a link, a FIFO or a directory in place of a file",
    "directories and files that everybody may write",
    "a file system that cannot be written",
    "names that are no text, and a hundred thousand files",
    "a file of a tebibyte, most of it a hole",
    "the cookie of another cluster or bookie",
    "a second process on a directory",
    "times in the future",
    "a setting that does not exist",
    "units: `1GB` and `1GiB`",
    "limits that are negative, zero or NaN",
    "0, false and nothing in the environment",
    "a key that is there twice",
    "secrets in arguments",
    "a receipt or a key that leads out of the prefix, or to another bucket",
    "an index or a page beyond its object",
    "an object replaced after it was listed",
    "pickles, and whatever else runs what is read",
    "ten thousand columns",
}
"""What may come from outside. A line of the page that is dropped has to be dropped here, too."""


def rows() -> dict[str, list[str]]:
    """The tests of each kind of input."""
    return {name: re.findall(r"`([^`]+)`", cell) for name, cell in ROW.findall(PAGE.read_text("utf-8"))}


def test_every_line_of_the_tables_is_understood_and_every_kind_of_input_has_one() -> None:
    lines = [line for line in PAGE.read_text("utf-8").splitlines() if line.startswith("| ")]
    assert len(rows()) == len(lines) - len([line for line in lines if line.startswith("| input |")])
    assert rows().keys() == INPUTS


def test_every_test_that_the_page_names_is_there_and_each_line_has_one() -> None:
    for what, tests in rows().items():
        assert tests, what
        for test in tests:
            file, _, name = test.partition("::")
            assert re.search(rf"^(async )?def {name}\(", (ROOT / file).read_text("utf-8"), re.MULTILINE), (what, test)
