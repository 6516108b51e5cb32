"""The ZooKeeper server for tests and benchmarks: its errors if it cannot run, and its cleanup."""

import pytest

from tallybook.bench.equipment import zookeeper_server
from tallybook.bench.equipment.zookeeper_server import ZooKeeperNotStarted, ZooKeeperServer


def test_a_missing_java_is_named_in_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ZooKeeperNotStarted, match="needs Java 17, and there is no `java` on the PATH"):
        ZooKeeperServer(tmp_path).start()


def test_missing_jars_are_named_in_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr(zookeeper_server.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ZooKeeperNotStarted, match="come with PySpark, which is not installed here: run `make setup`"):
        ZooKeeperServer(tmp_path).start()


def test_a_server_that_does_not_come_up_shows_what_it_printed_and_is_gone(tmp_path, monkeypatch):
    java = tmp_path / "java"
    java.write_text("#!/bin/sh\necho no such option\nexit 1\n")
    java.chmod(0o755)
    monkeypatch.setattr(zookeeper_server, "_requirements", lambda: (str(java), "jars"))
    server = ZooKeeperServer(tmp_path / "data")
    with pytest.raises(ZooKeeperNotStarted, match=r"did not start on 127.0.0.1:.*no such option"):
        server.start()
    assert server.pid is None
    with pytest.raises(ZooKeeperNotStarted, match="does not run"):
        server.pause()
