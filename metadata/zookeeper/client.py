"""Opens ZooKeeper: connects, creates the base nodes, builds the two ports."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kazoo.exceptions import NoNodeError
from kazoo.security import ACL, Permissions

from tallybook.core.errors import InvalidConfig, NewerFormat, NoSuchCluster
from tallybook.runtime.clock import Clock
from tallybook.runtime.logging import logger
from tallybook.runtime.rng import Rng
from tallybook.runtime.security.files import ZOOKEEPER, ZOOKEEPER_READER
from tallybook.runtime.tasks import Tasks

from ..client import MetadataClient
from .layout import FORMAT, Layout, number_of
from .membership import ZooKeeperMembership
from .requests import acl, children, get
from .session import Session, acls_for
from .store import ZooKeeperStore
from .tree import create_once, create_path
from .watches import WatchHub

if TYPE_CHECKING:
    from tallybook.runtime.security.process_security import ZooKeeperUsers

_CHANGES: Final = Permissions.WRITE | Permissions.CREATE | Permissions.DELETE | Permissions.ADMIN

_log = logger("metadata")


async def open_zookeeper(
    hosts: tuple[str, ...],
    root: str,
    *,
    create: bool,
    clock: Clock,
    rng: Rng,
    timeout_seconds: float = 10.0,
    session_seconds: float = 10.0,
    security: str = "",
    reads_only: bool = False,
) -> MetadataClient:
    """Open the metadata below the node ``root``.

    Args:
        hosts: ``host:port`` of each server.
        root: an absolute path such as ``/tallybook``.
        create: create a new cluster there, with parent nodes, if the node is missing or empty.
        clock: for deadlines and pauses.
        rng: for ids and jitter.
        timeout_seconds: deadline of this call and of every operation.
        session_seconds: session time-out: after a longer silence ZooKeeper treats a bookie as dead.
        security: directory of certificates for TLS, and of the password in the ACLs of new nodes; empty: neither.
            Nodes created earlier without a password may be open to all; that is logged.
        reads_only: create nothing, and use the password of the read-only user, if the directory has it.

    Raises:
        NoSuchCluster: ``root`` is missing or empty, and ``create`` is false.
        Unauthenticated, AccessDenied: ZooKeeper refuses the password, or access to ``root``.
        MetadataUnavailable: no server answers in time; the message has the URI.
        InvalidConfig: ``root`` is not a Tallybook cluster, or there is security without a password.
        NewerFormat: a newer Tallybook created it.
    """
    name = f"{'zks' if security else 'zk'}://{','.join(hosts)}{root}"
    password, acls = _password_and_acls(security, reads_only=reads_only)
    session = Session(
        hosts,
        name,
        clock=clock,
        rng=rng,
        timeout_seconds=timeout_seconds,
        session_seconds=session_seconds,
        security=security,
        password=password,
        acls=acls,
    )
    layout = Layout(root)
    await _start(session, layout, create=create and not reads_only, secured=password is not None)

    def stop_serving(_task: str, _error: BaseException) -> None:
        # Without the failed task, watches and registrations would silently be out of date.
        hub.end()
        membership.abandon()

    tasks = Tasks("zookeeper-metadata", stop_serving)
    hub = WatchHub(session, tasks)
    membership = ZooKeeperMembership(session, layout, hub, tasks)

    async def close() -> None:
        await membership.leave()
        hub.end()
        await tasks.close()
        await session.close()

    store = ZooKeeperStore(session, layout, hub, close, reads_only=reads_only)
    return MetadataClient(store, membership, link=session.link)


async def _start(session: Session, layout: Layout, *, create: bool, secured: bool) -> None:
    """Connect, and find or create the cluster; closes the session on failure."""
    await session.start()
    try:
        await (_prepare(session, layout) if create else _find(session, layout))
        if secured:
            await _warn_if_open(session, layout)
    except BaseException:
        await session.close()
        raise


def _password_and_acls(security: str, *, reads_only: bool) -> tuple[str | None, list[ACL] | None]:
    """The password to authenticate with, and the ACLs of new nodes; ``None`` without security.

    Raises:
        InvalidConfig: there is security without a password.
    """
    if not security:
        return None, None
    from tallybook.runtime.security.process_security import zookeeper_users  # noqa: PLC0415 (needs an extra)

    users = zookeeper_users(security)
    password = _password(users, security, reads_only=reads_only)
    return password, None if users.cluster is None else acls_for(users.cluster, users.reader)


def _password(users: ZooKeeperUsers, security: str, *, reads_only: bool) -> str:
    """USER:PASSWORD for authentication. Without it, any certificate that ZooKeeper accepts could change new nodes.

    Raises:
        InvalidConfig: there is none.
    """
    password = (users.reader or users.cluster) if reads_only else users.cluster
    if password is not None:
        return password
    if users.reader is not None:
        raise InvalidConfig(
            f"{security} has only {ZOOKEEPER_READER}, which permits reading only: this process changes metadata, and "
            f"needs {ZOOKEEPER}"
        )
    raise InvalidConfig(
        f"{security} has no {ZOOKEEPER}, and without it the metadata would be open to every certificate that "
        "ZooKeeper accepts: put USER:PASSWORD into that file, the same for all processes that open the metadata, "
        f"readable only for them ({ZOOKEEPER_READER} is enough for processes that only read)"
    )


async def _warn_if_open(session: Session, layout: Layout) -> None:
    """Warn if nodes are open to other users: nodes created without a password stay so."""
    [(entries, _)] = await session.ask(acl(layout.root))
    others = [entry.id for entry in entries if entry.id.scheme != "digest" and entry.perms & _CHANGES]
    if any(other.scheme == "world" for other in others):
        _log.warning(
            "metadata is open to all",
            path=session.name,
            error=f"every client of ZooKeeper may change {layout.root}: restrict it with setAcl -R",
        )
    elif others:
        _log.warning(
            "metadata is open to others",
            path=session.name,
            error=f"{others[0].scheme}:{others[0].id} may change {layout.root}: restrict it with setAcl -R",
        )


async def _find(session: Session, layout: Layout) -> None:
    """Check that there is a complete cluster at the root: its id counter is created last."""
    try:
        await _check_format(session, layout)
        await session.ask(get(layout.ids))
    except NoNodeError:
        try:
            [names] = await session.ask(children(layout.root))
        except NoNodeError:
            names = []
        if names and "format" not in names:
            raise _holds_something_else(session, layout) from None
        raise NoSuchCluster.at(session.name) from None


async def _prepare(session: Session, layout: Layout) -> None:
    """Check that the root is ours, and create the base nodes."""
    await create_path(session, layout.root)
    try:
        await _check_format(session, layout)
    except NoNodeError:
        # The format is the first node created below our root, so a root with other nodes but not this one is not ours.
        [names] = await session.ask(children(layout.root))
        if names and "format" not in names:
            raise _holds_something_else(session, layout) from None
        await create_once(session, layout.format, str(FORMAT).encode())
        await _check_format(session, layout)
    for path in (layout.ledgers, layout.cookies, layout.bookies, layout.records):
        await create_once(session, path, b"")
    await create_once(session, layout.ids, b"0")


async def _check_format(session: Session, layout: Layout) -> None:
    [(data, _)] = await session.ask(get(layout.format), linearizable=True)
    found = number_of(data)
    if found is None:
        raise _holds_something_else(session, layout)
    if found > FORMAT:
        raise NewerFormat.of(f"{session.name}: the layout", found, FORMAT)
    if found != FORMAT:
        raise InvalidConfig(f"{session.name}: the layout has format {found}, which does not exist")


def _holds_something_else(session: Session, layout: Layout) -> InvalidConfig:
    return InvalidConfig(f"{session.name}: the node {layout.root} is not that of a cluster")
