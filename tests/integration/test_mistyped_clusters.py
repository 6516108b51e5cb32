"""Commands with the URI of a cluster that does not exist: only a bookie creates it."""

import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
from kazoo.client import KazooClient

from tallybook.bench.equipment.zookeeper_server import ZooKeeperServer
from tallybook.cli.app import COMMANDS, _run, build
from tallybook.cli.exits import Exit
from tallybook.cli.invocation import RUNNING
from tallybook.cli.rights import REQUIRED_PERMISSIONS
from tallybook.core.errors import NoSuchCluster
from tallybook.metadata.zookeeper.client import open_zookeeper
from tallybook.runtime.clock import RealClock
from tallybook.runtime.rng import SystemRng

TREE = typer.main.get_command(build(COMMANDS))
OPENERS = [command for command, needs in REQUIRED_PERMISSIONS.items() if needs is not None and command != "bookie run"]
SERVERS = {"gateway run", "console run"}
"""They have an exit code of their own where they cannot start."""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with ZooKeeperServer(tmp_path_factory.mktemp("zookeeper")) as running:
        yield running


@pytest.fixture(scope="module")
def kazoo(server):
    client = KazooClient(server.address)
    client.start()
    yield client
    client.stop()
    client.close()


@pytest.fixture
def nothing_left() -> Iterator[None]:
    """Leave no command running behind, and the log as it was."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    RUNNING.set(None)
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture
def outcome(nothing_left: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[[str, str], Any]:
    """Run a command with a metadata URI, in this process: its exit code, what it prints, and what its error says."""

    def of(command: str, metadata: str) -> tuple[int, str, str]:
        code = _run([*line(command, metadata, tmp_path), "--json"], as_json=True)
        printed, said = capsys.readouterr()
        # Before it are lines of the log of a server.
        return code, printed, json.loads(said.splitlines()[-1])["error"]["message"].partition(": ")[0] if said else ""

    return of


def line(command: str, metadata: str, place: Path) -> list[str]:
    """A command with the fewest words with which it is understood."""
    at: Any = TREE
    for word in command.split():
        at = at.commands[word]
    values = {"metadata": metadata, "data": str(place / "data"), "url": f"file://{place}", "to": "earliest"}
    found = command.split()
    for each in at.params:
        if each.required or each.name in ("metadata", "data"):
            value = values.get(each.name, "7")
            found += [value] if each.param_type_name == "argument" else [each.opts[0], value]
    return [*found, "--replace", "--id", "b7"] if command == "bookie init" else found


def refused(uri: str) -> dict[str, tuple[int, str, str]]:
    """The expected outcome of all commands."""
    return {
        command: (Exit.REFUSED_TO_START if command in SERVERS else Exit.CALLER, "", f"there is no cluster at {uri}")
        for command in OPENERS
    }


def nodes(kazoo, parent: str = "/") -> set[str]:
    """Every node below ``parent``."""
    below = {str(Path(parent, name)) for name in kazoo.get_children(parent)}
    return below.union(*(nodes(kazoo, each) for each in below))


def test_no_command_makes_a_cluster_where_the_path_of_a_file_is_mistyped(tmp_path, outcome):
    uri = f"sqlite://{tmp_path}/mistyped/metadata.db"
    assert {command: outcome(command, uri) for command in OPENERS} == refused(uri)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.zookeeper
def test_no_command_makes_a_cluster_where_a_root_in_zookeeper_is_mistyped(server, kazoo, outcome):
    uri, before = f"zk://{server.address}/mistyped", nodes(kazoo)
    assert {command: outcome(command, uri) for command in OPENERS} == refused(uri)
    assert nodes(kazoo) == before


@pytest.mark.zookeeper
@pytest.mark.parametrize(
    ("number", "there"),
    [(0, []), (1, [""]), (2, ["", "/format"])],
    ids=["nothing", "an empty root", "half of a cluster"],
)
async def test_only_a_bookie_makes_a_cluster(server, kazoo, number, there):
    root = f"/root-{number}"
    for node in there:
        kazoo.create(root + node, b"1" if node else b"")
    before = nodes(kazoo)
    seams = {"clock": RealClock(), "rng": SystemRng()}
    with pytest.raises(NoSuchCluster, match=f"no cluster at zk://{server.address}{root}: "):
        await open_zookeeper((server.address,), root, create=False, **seams)
    assert nodes(kazoo) == before
    await (await open_zookeeper((server.address,), root, create=True, **seams)).close()
    await (await open_zookeeper((server.address,), root, create=False, **seams)).close()
