"""``python -m tallybook.sim.upgrade``: see --help of each command."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Final

import typer

from tallybook.bench.programs import ProgramFailed
from tallybook.bench.revisions import ROOT, Tree, unpack
from tallybook.core.errors import TallybookError

from . import fixture

FIXTURES: Final = ROOT / "tests" / "fixtures"
Revision = Annotated[str, typer.Argument(metavar="REV", help="A revision that git knows.")]

app = typer.Typer(add_completion=False, no_args_is_help=True)


@contextmanager
def _tree(revision: str) -> Iterator[Tree]:
    """The code of a revision, with room beside it."""
    directory = Path(tempfile.mkdtemp(prefix="tallybook-upgrade-"))
    try:
        code = directory / "code"
        tree = Tree(unpack(ROOT, revision, code), code, directory / "cluster")
        tree.check()
        yield tree
    except (ProgramFailed, TallybookError) as failure:
        print(failure, file=sys.stderr)
        raise typer.Exit(2) from failure
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@app.command()
def make_fixture(
    revision: Revision,
    name: Annotated[str, typer.Argument(help="Of the fixture: the version of that revision.")],
    target: Annotated[Path, typer.Option(help="Folder for it.")] = FIXTURES,
) -> None:
    """Have a revision fill a cluster, and keep what it leaves."""
    with _tree(revision) as tree:
        for made in (fixture.make(tree, name, target), fixture.record_wire(tree, name, target)):
            print(f"{made}: {made.stat().st_size:,} bytes")


if __name__ == "__main__":
    app()
