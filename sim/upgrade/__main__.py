"""Command line of the upgrade tests: ``python -m tallybook.sim.upgrade``."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Final

import typer

from tallybook.bench.compare.revisions import ROOT, Tree, unpack
from tallybook.bench.equipment.programs import ProgramFailed
from tallybook.core.errors import TallybookError

from . import fixture
from .mixed import MixedCluster

FIXTURES: Final = ROOT / "tests" / "fixtures"
Revision = Annotated[str, typer.Argument(metavar="REV", help="A revision that git knows.")]

app = typer.Typer(add_completion=False, no_args_is_help=True)


@contextmanager
def _tree(revision: str) -> Iterator[Tree]:
    """Check out a revision into a temporary directory, with a directory for its cluster."""
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
    name: Annotated[str, typer.Argument(help="Name of the fixture: the version of that revision.")],
    target: Annotated[Path, typer.Option(help="Folder for the fixture.")] = FIXTURES,
) -> None:
    """Let a revision fill a cluster, and save its files as a fixture."""
    with _tree(revision) as tree:
        for make in (fixture.make, fixture.record_wire, fixture.keep_nodes):
            made = make(tree, name, target)
            print(f"{made}: {made.stat().st_size:,} bytes")


@app.command()
def keep_nodes(
    name: Annotated[str, typer.Argument(help="Name of an existing fixture.")],
    target: Annotated[Path, typer.Option(help="Folder of the fixture.")] = FIXTURES,
) -> None:
    """Let the revision of a fixture write its metadata as ZooKeeper nodes again."""
    revision = json.loads((target / f"{name}.json").read_text())["revision"]
    with _tree(revision) as tree:
        print(fixture.keep_nodes(tree, name, target))


@app.command()
def mixed(
    revision: Annotated[str, typer.Argument(metavar="REV", help="A revision that git knows.")] = "",
    brief: Annotated[bool, typer.Option("--brief", help="One step instead of six.")] = False,
) -> None:
    """Run a cluster of this revision and another one (default: that of the newest fixture), and read everything."""
    with _tree(revision or _newest_fixture()) as old:
        new = Tree("working tree", ROOT, old.directory)
        new.check()
        print(f"old: {old.name}; new: the working tree", flush=True)
        old.directory.mkdir()
        cluster = MixedCluster(old, new, old.directory, partial(print, flush=True))
        (cluster.run_briefly if brief else cluster.run)()
        print("every confirmed entry and record was read")


def _newest_fixture() -> str:
    manifests = [json.loads((FIXTURES / f"{name}.json").read_text()) for name in fixture.names_in(FIXTURES)]
    return str(manifests[-1]["revision"])


if __name__ == "__main__":
    app()
