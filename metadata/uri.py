"""Metadata URIs: parsing, and opening the store that a URI names.

sqlite:///var/lib/tallybook/metadata.db     a file of this host, /var/lib/tallybook/metadata.db
sqlite:///./data/metadata.db                relative to the working directory; also ../
zk://zk1:2181,zk2:2181/tallybook            the node /tallybook of a ZooKeeper ensemble; needs the extra "zookeeper"
zks://zk1:2281,zk2:2281/tallybook           the same over TLS
memory:                                     in this process, not persistent
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, TypeAlias
from urllib.parse import unquote

from tallybook.core.access import Permission
from tallybook.core.errors import InvalidConfig
from tallybook.runtime.boot_clock import RealBootClock
from tallybook.runtime.clock import Clock
from tallybook.runtime.extras import NeedsExtra
from tallybook.runtime.rng import Rng

from .client import MetadataClient
from .guarded_store import read_only
from .memory import MemoryMetadata
from .records.security_required import requires_security

DEFAULT_ZOOKEEPER_PORT: Final = 2181
DEFAULT_ZOOKEEPER_TLS_PORT: Final = 2281

_HELP: Final = (
    "expected sqlite:///path/of/file, or zk://host:port[,host:port]/root "
    "(zks:// for TLS; for a relative path sqlite:///./path)"
)
_HOST: Final = re.compile(r"(?P<host>\[[0-9a-fA-F:.]+\]|[A-Za-z0-9_.-]+)(?::(?P<port>[0-9]{1,5}))?")


@dataclass(frozen=True, slots=True)
class SqliteUri:
    """A file on this host; a relative path starts with a dot."""

    path: str


@dataclass(frozen=True, slots=True)
class ZooKeeperUri:
    """Servers as ``host:port``, and the absolute path of a node."""

    hosts: tuple[str, ...]
    root: str
    tls: bool = False


@dataclass(frozen=True, slots=True)
class MemoryUri:
    """In-memory store of this process."""


MetadataUri: TypeAlias = SqliteUri | ZooKeeperUri | MemoryUri


def parse_uri(uri: str) -> MetadataUri:
    """Parse a metadata URI.

    Raises:
        InvalidConfig: it is invalid; the message says what is wrong and what is expected.
    """
    scheme, colon, rest = uri.partition(":")
    if not colon or not uri.isprintable():
        raise _invalid(uri, "it does not start with a scheme")
    if "?" in rest or "#" in rest:
        raise _invalid(uri, "options after ? or # are not supported")
    if scheme == "memory":
        if rest:
            raise _invalid(uri, "nothing may follow memory:")
        return MemoryUri()
    if scheme not in ("sqlite", "zk", "zks"):
        raise _invalid(uri, f"unknown scheme {scheme!r}")
    if not rest.startswith("//"):
        raise _invalid(uri, f"after {scheme}: there must be two slashes")
    authority, slash, path = rest[2:].partition("/")
    if scheme == "sqlite":
        return _sqlite(uri, authority, path)
    return _zookeeper(uri, authority, slash + path, tls=scheme == "zks")


def _sqlite(uri: str, authority: str, path: str) -> SqliteUri:
    if authority:
        raise _invalid(uri, f"a SQLite file is on this host, so there can be no host {authority!r}: use three slashes")
    path = unquote(path)
    if not path or path.endswith("/") or path in (".", ".."):
        raise _invalid(uri, "it names no file")
    if "\0" in path:
        raise _invalid(uri, "a path cannot hold a NUL")
    return SqliteUri(path if path.startswith(("./", "../")) else "/" + path.lstrip("/"))


def _zookeeper(uri: str, authority: str, path: str, *, tls: bool) -> ZooKeeperUri:
    hosts, default = [], DEFAULT_ZOOKEEPER_TLS_PORT if tls else DEFAULT_ZOOKEEPER_PORT
    for server in authority.split(","):
        match = _HOST.fullmatch(server)
        if match is None:
            raise _invalid(uri, f"{server!r} is not host:port")
        port = int(match["port"] or default)
        if not 1 <= port <= 65_535:
            raise _invalid(uri, f"{server!r} has an invalid port: {port}")
        hosts.append(f"{match['host']}:{port}")
    root = path.removesuffix("/")
    parts = root.split("/")[1:]
    if not parts:
        raise _invalid(uri, "the root node is missing, for example /tallybook")
    if any(part in ("", ".", "..") for part in parts) or parts[0] == "zookeeper":
        raise _invalid(uri, f"{path!r} cannot be a root node")
    return ZooKeeperUri(tuple(hosts), root, tls)


def _invalid(uri: str, what: str) -> InvalidConfig:
    return InvalidConfig(f"{uri!r} is not a metadata URI: {what}; {_HELP}")


async def open_metadata(
    uri: str,
    *,
    create: bool = False,
    clock: Clock,
    rng: Rng,
    timeout_seconds: float = 10.0,
    memory: MemoryMetadata | None = None,
    security: str = "",
) -> MetadataClient:
    """Open the metadata store that ``uri`` names. Its calls are counted, in ``load``.

    A process without write permission by its security directory, or without a security directory where the cluster
    requires security, gets a store that raises ``AccessDenied`` at every change.

    Args:
        uri: see the top of this module.
        create: create a new cluster if there is none: for bookies only. Other processes would take a typing error for
            an empty cluster.
        clock: for deadlines, pauses and heartbeats.
        rng: for ids, tokens and jitter.
        timeout_seconds: deadline of this call, and of every operation on the result.
        memory: the store for ``memory:``; default: a new and empty one.
        security: the security directory of this process, which permits ``zks:`` only for ZooKeeper; empty: none.

    Raises:
        NoSuchCluster: there is none, and ``create`` is false.
        InvalidConfig: the URI is invalid, it names something else, or the driver's library is not installed; or a
            security directory is required, invalid, or unused.
        Unauthenticated, AccessDenied: ZooKeeper refuses the connection, or access to that node.
        DamagedFile: the file is not an SQLite file, or a damaged one.
        DiskFailed: the directory of an SQLite file cannot be created.
        MetadataUnavailable: no answer in time; the message has the URI.
    """
    parsed = parse_uri(uri)
    if isinstance(parsed, ZooKeeperUri) and parsed.tls != bool(security):
        raise InvalidConfig(
            f"{uri} needs a security directory, for the certificates of TLS"
            if parsed.tls
            else f"{uri} does not use TLS, but this process has a security directory: use zks:// and the TLS port"
        )
    reason = _why_read_only(security)
    opened = await _open(parsed, create, clock, rng, timeout_seconds, memory, security, reads_only=bool(reason))
    try:
        if not security and await requires_security(opened.store):
            reason = f"the cluster at {uri} requires security, but this process has no security directory"
    except BaseException:
        await opened.close()
        raise
    return (read_only(opened, reason) if reason else opened).metered(clock)


def _why_read_only(security: str) -> str:
    """Why the process may only read, by its security directory; empty: it may write, or that is unknown here."""
    if not security:
        return ""
    # Loading the certificate check takes long.
    with NeedsExtra("a security directory"):
        from tallybook.runtime.security.own_rights import own_permissions  # noqa: PLC0415

    standing = own_permissions(security)
    return f"{standing.name} may only read" if standing.may_not(Permission.WRITE) else ""


async def _open(
    parsed: MetadataUri,
    create: bool,
    clock: Clock,
    rng: Rng,
    timeout_seconds: float,
    memory: MemoryMetadata | None,
    security: str,
    *,
    reads_only: bool,
) -> MetadataClient:
    if isinstance(parsed, MemoryUri):
        return (memory or MemoryMetadata(rng)).client()
    # Import drivers on demand: a user of one driver need not install the other's library.
    if isinstance(parsed, SqliteUri):
        from .sqlite.client import open_sqlite  # noqa: PLC0415

        return await open_sqlite(
            parsed.path,
            create=create,
            clock=clock,
            rng=rng,
            boot_clock=RealBootClock(),
            timeout_seconds=timeout_seconds,
            reads_only=reads_only,
        )
    with NeedsExtra("zk://"):
        from .zookeeper.client import open_zookeeper  # noqa: PLC0415

    return await open_zookeeper(
        parsed.hosts,
        parsed.root,
        create=create,
        clock=clock,
        rng=rng,
        timeout_seconds=timeout_seconds,
        security=security,
        reads_only=reads_only,
    )
