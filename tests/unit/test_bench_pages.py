"""What benchmarks with pages have in common: options, what does not go to docs/, what a page says is missing."""

from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from tallybook.bench.operation import __main__ as operation
from tallybook.bench.operation import imports
from tallybook.bench.operation.gates import GATES, HEAD, IMPORT, OVERLOAD, PARTS
from tallybook.bench.pages import DOCS, admit, keep_results, read_results, wanted_parts, write_page
from tallybook.bench.storage import __main__ as storage

LEAST = {"turns": 3, "seconds": 20}


def run(main: Any, *words: str) -> Any:
    """Run a benchmark as its command line does."""
    app = typer.Typer()
    app.command()(main)
    return CliRunner().invoke(app, words)


# -- options -----------------------------------------------------------------------------------


def test_all_parts_are_wanted_unless_some_are_named():
    assert wanted_parts("", PARTS) == list(PARTS)
    assert wanted_parts(f"{IMPORT},{OVERLOAD}", PARTS) == [IMPORT, OVERLOAD]


@pytest.mark.parametrize("main", [operation.main, storage.main], ids=["operation", "storage"])
def test_a_part_that_there_is_not_is_named(main):
    done = run(main, "--only", "tlx")
    assert done.exit_code == 2
    assert "no such part: tlx" in done.output


def test_results_that_are_none_are_a_wrong_option(tmp_path):
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(typer.BadParameter, match=r"other\.json"):
        read_results([tmp_path / "other.json"])
    keep_results(tmp_path / "one.json", {"date": "May", "tallybook": "0.1"}, {}, {"a": 1.0})
    assert [each.figures for each in read_results([tmp_path / "one.json"])] == [{"a": 1.0}]
    assert read_results(None) == []


# -- what may go to docs/ ----------------------------------------------------------------------


def test_a_short_run_may_write_a_page_anywhere_but_in_docs(tmp_path):
    admit(tmp_path, {"turns": 1, "seconds": 1}, LEAST)
    admit(None, {"turns": 1, "seconds": 1}, LEAST)
    admit(DOCS, {"turns": 3, "seconds": 20, "ledgers": 1}, LEAST)
    for short in ({"turns": 2, "seconds": 20}, {"turns": 3, "seconds": 19}):
        with pytest.raises(typer.BadParameter, match="docs/ takes pages of at least 3 turns, 20 seconds"):
            admit(DOCS, short, LEAST)


def test_docs_are_docs_by_whatever_way_they_are_named(monkeypatch):
    monkeypatch.chdir(DOCS.parent)
    for way in (Path("docs"), Path("docs/../docs"), Path("bench/../docs/")):
        with pytest.raises(typer.BadParameter):
            admit(way, {"turns": 1}, LEAST)


@pytest.mark.parametrize("main", [operation.main, storage.main], ids=["operation", "storage"])
def test_a_page_that_docs_would_not_take_is_refused_before_anything_is_measured(main, tmp_path):
    for short in (("--turns", "2"), ("--seconds", "1")):
        done = run(main, "--dir", str(tmp_path / "scratch"), *short, "--report", str(DOCS))
        assert done.exit_code == 2
        assert "docs/ takes pages of" in done.output
    assert not (tmp_path / "scratch").exists()


# -- what was not measured ---------------------------------------------------------------------


def test_a_gate_that_was_not_measured_stands_on_the_page_as_that(tmp_path):
    page = write_page(tmp_path / "p.md", HEAD, GATES, {}, {}, {"overload_errors": 0.0}).read_text()
    assert "| errors of other types than BUSY | ≤ 0 | **0** | yes |" in page
    assert page.count("| not measured | - |") == len(GATES) - 1


# -- imports -----------------------------------------------------------------------------------


def test_the_time_of_an_import_is_the_best_of_many_without_that_of_a_bare_interpreter():
    said = {imports.BARE: [0.05, 0.02, 0.04], "tallybook.client": [0.21, 0.4, 0.3]}
    best = imports.best_seconds(["tallybook.client"], 3, lambda module: said[module].pop(0))
    assert best == {imports.BARE: 0.02, "tallybook.client": 0.21}


def test_what_a_program_waits_for_at_its_import_of_the_client_has_a_gate(monkeypatch):
    monkeypatch.setattr(imports, "seconds", lambda module: 0.02 if module == imports.BARE else 0.2)
    figures = imports.measure_imports(1)
    [gate] = [gate for gate in GATES if gate.workload == IMPORT]
    assert figures[gate.figure] == 180
    assert gate.met_by(299)
    assert not gate.met_by(301)


def test_an_interpreter_is_started_and_its_time_taken():
    assert 0 < imports.seconds(imports.BARE) < 60
