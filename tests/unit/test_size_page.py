"""``scripts/gen-size --check`` finds what must not be: a large folder, a long file, totals that are out of date."""

import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "gen-size"


@pytest.fixture
def size(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The script as a module; it takes every file of a tree, without git."""
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    loader = SourceFileLoader("gen_size", str(SCRIPT))
    module = module_from_spec(spec_from_loader(loader.name, loader))
    monkeypatch.setitem(sys.modules, loader.name, module)
    loader.exec_module(module)

    def listed(root: Path) -> list[str]:
        return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())

    monkeypatch.setattr(module, "tracked", listed)
    return module


@pytest.fixture
def tree(size: Any, tmp_path: Path) -> Path:
    """A small tree with its page."""
    for name, text in {
        "setup.cfg": "[options]\npackage_dir =\n    tallybook = wheel/tallybook\n    tallybook.core = core\n",
        "devtools/setup.cfg": "[options]\npackage_dir =\n    tallybook.sim = ../sim\n",
        "core/__init__.py": "",
        "core/a.py": "x = 1\n" * 400,
        "core/a_pb2.py": "x = 1\n" * 1000,
        "core/b/__init__.py": "x = 1\n",
        "sim/c.py": "x = 1\n" * 100,
        "tests/unit/test_a.py": "x = 1\n" * 200,
        "scripts/tool": "#!/usr/bin/env python3\nx = 1\n",
        "scripts/other": "#!/bin/sh\n",
        str(size.PAGE): "",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / size.PAGE).write_text(size.page(tmp_path))
    return tmp_path


def test_the_page_has_the_lines_of_each_part_without_generated_code(size, tree):
    text = (tree / size.PAGE).read_text()
    assert size.totals(text) == {
        "Product": 401,
        "Simulation and benchmarks": 100,
        "Tests": 200,
        "Scripts and examples": 2,
        "All": 703,
    }
    assert "| `core/` | 1 | 400 |" in text
    assert "`core/b/`" not in text
    assert "| `core/a.py` | 400 |" in text
    assert size.problems(tree) == []


@pytest.mark.parametrize(
    ("added", "lines", "problems"),
    [
        (["core/b/few.py"], 8, []),
        (["core/b/more.py"], 9, ["docs/project/size.md: Product: 410 lines, the page has 401; run `make docs`"]),
        ([f"sim/m{each}.py" for each in range(21)], 0, ["sim: 22 modules; make a room of some (limit 20)"]),
        ([f"tests/unit/test_m{each}.py" for each in range(21)], 0, []),
        (["examples/long.py"], 601, ["examples/long.py: 601 lines; split the file (limit 600)"]),
    ],
    ids=["small difference", "totals out of date", "many modules", "many tests", "long file"],
)
def test_what_is_too_large_or_out_of_date_is_found(size, tree, added, lines, problems):
    for name in added:
        (tree / name).parent.mkdir(exist_ok=True)
        (tree / name).write_text("x = 1\n" * lines)
    assert size.problems(tree) == problems


def test_a_file_or_a_page_that_is_gone_is_found(size, tree):
    (tree / "core/a.py").rename(tree / "core/b/a.py")
    assert size.problems(tree) == ["docs/project/size.md: core/a.py is not there; run `make docs`"]
    (tree / size.PAGE).unlink()
    assert size.problems(tree) == ["docs/project/size.md: not there; run `make docs`"]
