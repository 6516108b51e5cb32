"""Run files, errors and metrics of another process may be incomplete, since it may have died meanwhile."""

from __future__ import annotations

from pathlib import Path

import pytest

from tallybook.cli.local.launcher import last_error, read_run_file
from tallybook.runtime.http.scrape import parse_metrics


@pytest.mark.parametrize("text", ["bad x", "bad 1e", "bad 1.2.3", "bad __import__"])
def test_a_line_without_a_number_is_no_metric(text: str):
    assert parse_metrics(f"good 5\n{text}\nfree +Inf\n") == {"good": 5.0, "free": float("inf")}


@pytest.mark.parametrize("data", [b"", b"{", b'{"pid": ', b"\xff", b"[]", b"[" * 5_000])
def test_a_run_file_that_is_not_whole_is_none(data: bytes, tmp_path: Path):
    file = tmp_path / "run.json"
    file.write_bytes(data)
    assert read_run_file(file) is None


@pytest.mark.parametrize(
    "data",
    [
        b'{"error": {"code": 30',
        b'{"error": []}',
        b'{"error": {"code": [], "message": ""}}',
        b'{"error": ' + b"[" * 5_000,
    ],
)
def test_last_words_that_were_cut_off_are_no_error(data: bytes, tmp_path: Path):
    log = tmp_path / "bookie-1.log"
    log.write_bytes(b"starting\n" + data)
    assert last_error(log) is None
