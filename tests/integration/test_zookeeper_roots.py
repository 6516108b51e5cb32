"""Who makes a cluster in ZooKeeper, and who only finds one."""

from pathlib import Path

import pytest
from kazoo.client import KazooClient

from tallybook.bench.zookeeper_server import ZooKeeperServer
from tallybook.core.errors import NoSuchCluster
from tallybook.metadata.zookeeper.client import open_zookeeper
from tallybook.runtime.clock import RealClock
from tallybook.runtime.rng import SystemRng

pytestmark = pytest.mark.zookeeper


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


def nodes(kazoo, parent: str = "/") -> set[str]:
    """Every node below ``parent``."""
    below = {str(Path(parent, name)) for name in kazoo.get_children(parent)}
    return below.union(*(nodes(kazoo, each) for each in below))


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
