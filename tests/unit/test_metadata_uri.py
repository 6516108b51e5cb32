"""Metadata URIs: accepted forms, and helpful errors for others."""

import pytest

from tallybook.core.errors import InvalidConfig
from tallybook.metadata.memory import MemoryMetadata
from tallybook.metadata.uri import MemoryUri, SqliteUri, ZooKeeperUri, open_metadata, parse_uri
from tallybook.runtime.clock import RealClock
from tallybook.runtime.rng import SeededRng


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("memory:", MemoryUri()),
        ("sqlite:///var/lib/tallybook/metadata.db", SqliteUri("/var/lib/tallybook/metadata.db")),
        ("sqlite:///./data/metadata.db", SqliteUri("./data/metadata.db")),
        ("sqlite:///with%20space/%C3%BC.db", SqliteUri("/with space/ü.db")),
        ("sqlite:///x%3Fy", SqliteUri("/x?y")),
        ("zk://zk1:2181/tallybook", ZooKeeperUri(("zk1:2181",), "/tallybook")),
        ("zks://zk1/tallybook", ZooKeeperUri(("zk1:2281",), "/tallybook", tls=True)),
        ("zk://zk1/tallybook", ZooKeeperUri(("zk1:2181",), "/tallybook")),
        ("zk://zk1:1,zk2.example.com:65535/a/b/c", ZooKeeperUri(("zk1:1", "zk2.example.com:65535"), "/a/b/c")),
        ("zk://127.0.0.1:2181,[::1]:2181/tallybook/", ZooKeeperUri(("127.0.0.1:2181", "[::1]:2181"), "/tallybook")),
    ],
)
def test_a_uri_is_understood(uri, expected):
    assert parse_uri(uri) == expected


@pytest.mark.parametrize(
    ("uri", "complaint"),
    [
        ("", "does not start with a scheme"),
        ("sqlite:///a\nb", "does not start with a scheme"),
        ("http://x/y", "unknown scheme 'http'"),
        ("sqlite3:///x", "unknown scheme 'sqlite3'"),
        ("memory:x", "nothing may follow memory:"),
        ("sqlite:/x.db", "two slashes"),
        ("sqlite://x.db", "there can be no host 'x.db': use three slashes"),
        ("sqlite:///", "names no file"),
        ("sqlite:///directory/", "names no file"),
        ("sqlite:///..", "names no file"),
        ("sqlite:///a%00b", "cannot hold a NUL"),
        ("sqlite:///x.db?mode=ro", "options after"),
        ("zk:host:1/root", "two slashes"),
        ("zk:///root", "'' is not host:port"),
        ("zk://zk1:2181,/root", "'' is not host:port"),
        ("zk://zk1:2181, zk2:2181/root", "' zk2:2181' is not host:port"),
        ("zk://zk1:port/root", "'zk1:port' is not host:port"),
        ("zk://user@zk1:2181/root", "'user@zk1:2181' is not host:port"),
        ("zk://zk1:0/root", "'zk1:0' has an invalid port: 0"),
        ("zk://zk1:65536/root", "invalid port: 65536"),
        ("zk://zk1:2181/", "root node is missing"),
        ("zk://zk1:2181/a//b", "cannot be a root node"),
        ("zk://zk1:2181/a/../b", "cannot be a root node"),
        ("zk://zk1:2181/zookeeper/quota", "cannot be a root node"),
    ],
)
def test_nonsense_is_refused_with_what_is_wrong_and_what_would_be_right(uri, complaint):
    with pytest.raises(InvalidConfig) as refused:
        parse_uri(uri)
    assert complaint in refused.value.message
    assert repr(uri) in refused.value.message
    assert "expected sqlite:///path/of/file, or zk://host:port[,host:port]/root" in refused.value.message


async def test_memory_is_a_store_of_ones_own_unless_one_is_given():
    shared = MemoryMetadata(SeededRng(1))
    options = {"clock": RealClock(), "rng": SeededRng(2)}
    async with (
        await open_metadata("memory:", **options) as own,
        await open_metadata("memory:", **options, memory=shared) as one,
        await open_metadata("memory:", **options, memory=shared) as other,
    ):
        await one.store.write_cookie("b1", b"cookie")
        assert await other.store.read_cookie("b1") == b"cookie"
        assert await own.store.read_cookie("b1") is None


async def test_a_sqlite_uri_opens_its_file_and_makes_the_directories(tmp_path):
    path = tmp_path / "not" / "yet" / "metadata.db"
    async with await open_metadata(f"sqlite://{path}", create=True, clock=RealClock(), rng=SeededRng(2)) as metadata:
        await metadata.store.write_cookie("b1", b"cookie")
    assert path.exists()
    async with await open_metadata(
        f"sqlite:/{'/'}{path}", create=True, clock=RealClock(), rng=SeededRng(2)
    ) as metadata:
        assert await metadata.store.read_cookie("b1") == b"cookie"
