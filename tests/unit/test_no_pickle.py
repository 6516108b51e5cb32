"""Data from the wire or from disk are never executed: pickle and the like are used for neither."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = sorted(path.parent.name for path in ROOT.glob("*/py.typed"))
UNSAFE = {"pickle", "_pickle", "cPickle", "cloudpickle", "dill", "jsonpickle", "joblib", "marshal", "shelve", "yaml"}
RUNS = {"eval", "exec", "compile", "__import__"}
ALLOWED = {"sim/model/machines.py", "sim/model/search.py"}
"""The search of small worlds keeps its own states, in its own memory."""


def unsafe_in(text: str) -> list[str]:
    """Uses in a module of functions that may execute their input."""
    found = []
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Import(names=names):
                found += [alias.name for alias in names if alias.name.partition(".")[0] in UNSAFE]
            case ast.ImportFrom(module=str(module)) if module.partition(".")[0] in UNSAFE:
                found.append(module)
            case ast.Call(func=ast.Name(id=name)) if name in RUNS:
                found.append(name)
            case ast.keyword(arg="allow_pickle"):
                found.append("allow_pickle")
            case ast.Call(func=ast.Attribute(attr="read_pickle" | "to_pickle" as name)):
                found.append(name)
    return found


def test_no_folder_reads_bytes_that_could_run_something() -> None:
    assert {"core", "client", "bookie", "archive", "spark", "gateway"} <= set(FOLDERS)
    found = {}
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*.py"):
            unsafe = unsafe_in(path.read_text("utf-8"))
            if unsafe:
                found[str(path.relative_to(ROOT))] = unsafe
    assert set(found) == ALLOWED, found


@pytest.mark.parametrize(
    "text",
    [
        "import pickle", "from pickle import loads", "import yaml", "import cloudpickle as c", "eval(text)",
        "numpy.load(f, allow_pickle=True)", "pandas.read_pickle(f)", "def f():\n    import marshal",
    ],
)  # fmt: skip
def test_the_check_finds_what_it_is_for(text: str) -> None:
    assert unsafe_in(text)
