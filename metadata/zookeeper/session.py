"""One session with ZooKeeper, as coroutines with deadlines.

kazoo works in its own threads. Requests are passed to it from the event loop; answers, and changes of the connection's
state, come back by ``call_soon_threadsafe``.

A request has one of three outcomes: ZooKeeper answers it, possibly with a refusal; it was never sent; or the connection
or the deadline interrupted it, and the outcome is unknown. ``ask`` is for repeatable requests: it repeats them until
the deadline. ``send_once`` sends once.

A new session may connect to a server that lags behind the state that the old session saw. So the first request after
an expiry, and every linearizable read, is preceded by a ``sync``.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, Final

from kazoo.client import KazooClient, KazooState
from kazoo.exceptions import (
    AuthFailedError,
    BadVersionError,
    ConnectionClosedError,
    ConnectionLoss,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    OperationTimeoutError,
    SessionExpiredError,
    ZookeeperError,
)
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.interfaces import IAsyncResult
from kazoo.security import ACL, make_digest_acl

from tallybook.core.errors import AccessDenied, MetadataOutcomeUnknown, MetadataUnavailable, Unauthenticated
from tallybook.runtime.clock import Clock
from tallybook.runtime.concurrency.backoff import Backoff
from tallybook.runtime.rng import Rng
from tallybook.runtime.security.thread_tls import connect_tls
from tallybook.runtime.tasks import ThreadWorkers

from ..connection_status import ConnectionStatus
from .requests import ZooKeeperCall, sync

REFUSALS: Final = (BadVersionError, NodeExistsError, NoNodeError)
"""Answers that callers handle: raised unchanged."""

_CUT_OFF: Final = (ConnectionClosedError, ConnectionLoss, OperationTimeoutError, SessionExpiredError)
STOP_SECONDS: Final = 30.0
_PAUSE_SECONDS: Final = 0.1
"""Maximum pause before an interrupted request is repeated."""


class TlsHandler(SequentialThreadingHandler):  # type: ignore[misc]  # kazoo carries no types
    """Opens kazoo's connections with our TLS settings: its own would trust all public authorities, and old versions.

    Args:
        directory: the security directory.
    """

    def __init__(self, directory: str) -> None:
        super().__init__()
        self._directory = directory

    def create_connection(self, address: tuple[str, int], hostname: str, timeout: float, **_: object) -> Any:
        """Open a connection; see ``dial``. kazoo retries on OSError."""
        return connect_tls(self._directory, address, hostname.strip("[]"), timeout)


class _CutOff(Exception):
    """The request was interrupted: it may have been executed, or may still be."""


def acls_for(password: str, reader: str | None) -> list[ACL]:
    """ACLs with all permissions for the cluster's user, and read permission for the reader.

    Permissions for a node's creator would be permissions for every certificate with the same name.
    """
    cluster = [_digest(password, all=True)]
    return cluster if reader is None else [*cluster, _digest(reader, read=True)]


def _digest(password: str, **permissions: bool) -> ACL:
    user, _, secret = password.partition(":")
    return make_digest_acl(user, secret, **permissions)


class Session:
    """The connection of one client.

    Args:
        hosts: ``host:port`` of each server.
        name: the URI, for messages.
        clock: for deadlines and pauses.
        rng: jitter of pauses.
        timeout_seconds: deadline of one operation.
        session_seconds: session time-out: after a longer silence ZooKeeper treats this client as dead.
        security: directory of the certificates, for TLS; empty: no TLS.
        password: USER:PASSWORD for authentication.
        acls: ACLs of new nodes; default: open to all.
    """

    def __init__(
        self,
        hosts: tuple[str, ...],
        name: str,
        *,
        clock: Clock,
        rng: Rng,
        timeout_seconds: float,
        session_seconds: float,
        security: str = "",
        password: str | None = None,
        acls: list[ACL] | None = None,
    ) -> None:
        self.name = name
        self.clock = clock
        self.rng = rng
        self.timeout_seconds = timeout_seconds
        self._kazoo = KazooClient(
            ",".join(hosts),
            timeout=session_seconds,
            connection_retry={"max_tries": -1, "delay": 0.05, "max_delay": 1.0},
            handler=TlsHandler(security) if security else None,
            auth_data=[("digest", password)] if password else None,
            default_acl=acls,
        )
        self._loop = asyncio.get_running_loop()
        self._connected = asyncio.Event()
        self._must_sync = False
        self.link = ConnectionStatus(connected=False)
        """Status of the connection."""
        self._closed = False
        self.on_connected: list[Callable[[], None]] = []
        """Called on the event loop after every (re)connection: ZooKeeper has dropped all earlier watches."""

    @property
    def id(self) -> int | None:
        """Id of the current session, which ZooKeeper stores with ephemeral nodes."""
        client_id = self._kazoo.client_id
        return None if client_id is None else int(client_id[0])

    async def start(self) -> None:
        """Connect.

        Raises:
            MetadataUnavailable: no server answers before the deadline.
        """
        self._kazoo.add_listener(self._state_changed)
        self._kazoo.start_async()
        try:
            await self._wait_connected(self.deadline())
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """End the session and its threads. ZooKeeper removes the ephemeral nodes immediately."""
        if self._closed:
            return
        self._closed = True
        stopper = ThreadWorkers(1, "tallybook-zookeeper-stop")
        try:
            async with asyncio.timeout(STOP_SECONDS):
                await stopper.run(self._stop)
        except TimeoutError:
            # kazoo hangs in a connection attempt. Its threads end with the process.
            return
        await stopper.close()

    def _stop(self) -> None:
        self._kazoo.stop()
        self._kazoo.close()

    async def ask(self, *requests: ZooKeeperCall, linearizable: bool = False, optional: bool = False) -> list[Any]:
        """Send repeatable requests, pipelined in order; return their answers.

        With ``optional`` the answer for a node that does not exist is ``None``.

        Raises:
            NoNodeError, NodeExistsError, BadVersionError: the first refusal.
            MetadataUnavailable: they were not all answered before the deadline.
        """
        deadline = self.deadline()
        while True:
            await self._wait_connected(deadline)
            synced, expiries = linearizable or self._must_sync, self.link.expiries
            try:
                # A session's requests are answered in order, so requests after a sync read its state.
                answers = await self._send((sync, *requests) if synced else requests, deadline, optional=optional)
                if expiries == self.link.expiries:
                    self._must_sync &= not synced
                    return answers[1:] if synced else answers
                # kazoo had a new session before this loop was told: the answers may be older than earlier ones.
                continue
            except (_CutOff, TimeoutError) as error:
                await self.pause_before(deadline, error)

    async def send_once(self, request: ZooKeeperCall) -> Any:
        """Send a request once; return its answer.

        Raises:
            NoNodeError, NodeExistsError, BadVersionError: the refusal.
            MetadataUnavailable: it was not sent.
            MetadataOutcomeUnknown: it may have been executed, or may still be.
        """
        deadline = self.deadline()
        await self._wait_connected(deadline)
        try:
            return (await self._send((request,), deadline))[0]
        except (_CutOff, TimeoutError) as error:
            reason = str(error) or type(error).__name__
            raise MetadataOutcomeUnknown(f"{self.name}: the connection was cut off: {reason}") from error

    async def _send(self, requests: tuple[ZooKeeperCall, ...], deadline: float, *, optional: bool = False) -> list[Any]:
        answers = [self._submit(request) for request in requests]
        async with asyncio.timeout(max(0.0, deadline - self.clock.monotonic())):
            results = await asyncio.gather(*answers, return_exceptions=True)
        for index, result in enumerate(results):
            if optional and isinstance(result, NoNodeError):
                results[index] = None
            elif isinstance(result, BaseException):
                self._raise(result)
        return results

    def _raise(self, error: BaseException) -> None:
        if isinstance(error, REFUSALS):
            raise error
        if isinstance(error, NoAuthError):
            raise AccessDenied(f"{self.name}: this user may not access these nodes") from error
        if isinstance(error, AuthFailedError):
            raise Unauthenticated(f"{self.name} refuses the user or the password") from error
        if isinstance(error, ZookeeperError) and not isinstance(error, _CUT_OFF):
            raise self._unavailable(f"refused: {type(error).__name__} {error}") from error
        raise _CutOff(str(error) or type(error).__name__) from error

    def deadline(self) -> float:
        """Deadline of an operation that begins now, as monotonic time."""
        return self.clock.monotonic() + self.timeout_seconds

    async def pause_before(self, deadline: float, error: Exception) -> None:
        """Pause before a retry after ``error``.

        Raises:
            MetadataUnavailable: the deadline has come.
        """
        if not await Backoff(self.clock, self.rng, first_s=_PAUSE_SECONDS, deadline=deadline).pause():
            raise self._unavailable(f"not done within {self.timeout_seconds} s: {error!r}") from error

    def _submit(self, request: ZooKeeperCall) -> asyncio.Future[Any]:
        """Pass a request to kazoo; the future gets its answer."""
        future: asyncio.Future[Any] = self._loop.create_future()

        def settle(answer: IAsyncResult) -> None:
            if future.done():
                return
            if answer.successful():
                future.set_result(answer.value)
            else:
                future.set_exception(answer.exception)

        request(self._kazoo).rawlink(lambda answer: self.call_on_loop(settle, answer))
        return future

    def call_on_loop(self, function: Callable[..., None], *args: Any) -> None:
        """Call ``function`` on the event loop, in order; for the threads of kazoo."""
        # A closed loop has no waiters.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function, *args)

    async def _wait_connected(self, deadline: float) -> None:
        if self._closed:
            raise self._unavailable("this client is closed")
        if self._connected.is_set():
            return
        try:
            async with asyncio.timeout(max(0.0, deadline - self.clock.monotonic())):
                await self._connected.wait()
        except TimeoutError as error:
            raise self._unavailable(f"no server answers within {self.timeout_seconds} s") from error

    def _unavailable(self, what: str) -> MetadataUnavailable:
        return MetadataUnavailable(f"{self.name}: {what}")

    def _state_changed(self, state: str) -> None:
        """Called by kazoo, in its connection's thread."""
        self.call_on_loop(self._take_state, state)

    def _take_state(self, state: str) -> None:
        if state == KazooState.CONNECTED:
            self._connected.set()
            self.link.connected = True
            for callback in list(self.on_connected):
                callback()
            return
        self._connected.clear()
        self.link.connected = False
        if state == KazooState.LOST:
            self.link.expiries += 1
            self._must_sync = True
