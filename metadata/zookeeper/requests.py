"""Requests to ZooKeeper as values: functions that pass one request to kazoo and return its pending answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from kazoo.client import KazooClient
from kazoo.interfaces import IAsyncResult
from kazoo.protocol.states import WatchedEvent

ZooKeeperCall: TypeAlias = Callable[[KazooClient], IAsyncResult]
Watcher: TypeAlias = Callable[[WatchedEvent], None]

ANY_VERSION = -1


def sync(kazoo: KazooClient) -> IAsyncResult:
    """Let this session's server catch up with the leader."""
    return kazoo.sync_async("/")


def get(path: str) -> ZooKeeperCall:
    """Answers (data, status), or NoNodeError."""
    return lambda kazoo: kazoo.get_async(path)


def acl(path: str) -> ZooKeeperCall:
    """Answers (ACL entries, status), or NoNodeError."""
    return lambda kazoo: kazoo.get_acls_async(path)


def exists(path: str, watcher: Watcher) -> ZooKeeperCall:
    """Answers the status or ``None``; ``watcher`` is called once, when the node is created, written or deleted."""
    return lambda kazoo: kazoo.exists_async(path, watch=watcher)


def children(path: str, watcher: Watcher | None = None) -> ZooKeeperCall:
    """Answers the names of a node's children, or NoNodeError; ``watcher`` is called once, when they change."""
    return lambda kazoo: kazoo.get_children_async(path, watch=watcher)


def create(path: str, data: bytes, *, ephemeral: bool = False) -> ZooKeeperCall:
    """Answers the path, NodeExistsError, or NoNodeError if the parent is missing."""
    return lambda kazoo: kazoo.create_async(path, data, ephemeral=ephemeral)


def write(path: str, data: bytes, version: int = ANY_VERSION) -> ZooKeeperCall:
    """Answers the new status, BadVersionError, or NoNodeError."""
    return lambda kazoo: kazoo.set_async(path, data, version)


def delete(path: str, version: int = ANY_VERSION) -> ZooKeeperCall:
    """Answers True, BadVersionError, or NoNodeError."""
    return lambda kazoo: kazoo.delete_async(path, version)


def create_checked(path: str, data: bytes, checked: str, checked_version: int) -> ZooKeeperCall:
    """Create a node if another node still has a version. Answers the results of the check and of the creation."""

    def request(kazoo: KazooClient) -> IAsyncResult:
        transaction = kazoo.transaction()
        transaction.check(checked, checked_version)
        transaction.create(path, data)
        return transaction.commit_async()

    return request


def delete_recorded(path: str, version: int, record: str, data: bytes, record_version: int) -> ZooKeeperCall:
    """Delete one node and write another. Answers the results of the deletion and of the write."""

    def request(kazoo: KazooClient) -> IAsyncResult:
        transaction = kazoo.transaction()
        transaction.delete(path, version)
        transaction.set_data(record, data, record_version)
        return transaction.commit_async()

    return request


def write_announced(path: str, data: bytes, version: int, announce: str) -> ZooKeeperCall:
    """Write a node, and touch another one to trigger its watches. Answers the results of both."""

    def request(kazoo: KazooClient) -> IAsyncResult:
        transaction = kazoo.transaction()
        transaction.set_data(path, data, version)
        transaction.set_data(announce, b"")
        return transaction.commit_async()

    return request
