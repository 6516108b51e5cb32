"""Checks the password of a ledger; asks a bookie whether this process is authorized to change the metadata.

Operator commands and clients write the metadata store directly, with no server in between. With security on, they
first ask a bookie, which knows the principal from the certificate of the connection and applies ``access.toml``. The
bookie writes a command that it allows to its audit log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple

from tallybook.core.access import Permission
from tallybook.core.errors import (
    AccessDenied,
    HandleClosed,
    InvalidArgument,
    MetadataUnavailable,
    PeerError,
    TallybookError,
    Unauthenticated,
    Unauthorized,
)
from tallybook.core.keys import digest_key, key_matches, ledger_key
from tallybook.metadata.ledger.model import DigestType, LedgerMetadata
from tallybook.runtime.clock import Clock
from tallybook.runtime.logging import logger
from tallybook.runtime.tasks import Tasks

from .background import client_tasks
from .ports import ClientWorld

HEDGE_SECONDS: Final = 1.0
"""After this time without an answer the next bookie is asked, too."""
TOTAL_SECONDS: Final = 10.0
"""Timeout for all bookies together."""

RENEW_SECONDS: Final = 30.0
"""An authorization older than this is renewed in the background, at the next change."""
RENEWAL_WAIT_AFTER_SECONDS: Final = 60.0
"""A change waits for the renewal of an authorization older than this ..."""
RENEWAL_WAIT_SECONDS: Final = 1.0
"""... for at most this long; after that the old authorization stays valid until a bookie denies."""

_log = logger("client.authorization")


def ledger_keys(metadata: LedgerMetadata, password: bytes) -> tuple[bytes, bytes | None]:
    """The ledger key for bookies, and the digest key if the digest is an HMAC."""
    if not metadata.key_verifier:
        return b"", None
    signing = digest_key(password, metadata.key_salt) if metadata.digest is DigestType.HMAC_SHA256 else None
    return ledger_key(password, metadata.key_salt), signing


def check_password(metadata: LedgerMetadata, password: bytes) -> None:
    """Check the password of a ledger.

    Raises:
        Unauthorized: wrong password, or a password for a ledger that has none.
    """
    key, _ = ledger_keys(metadata, password)
    if password and not metadata.key_verifier:
        # The caller relies on a password; perhaps it expected another ledger.
        raise Unauthorized(f"ledger {metadata.ledger_id} has no password, but one was given")
    if metadata.key_verifier and not key_matches(key, metadata.key_verifier):
        raise Unauthorized(f"ledger {metadata.ledger_id}: wrong password")


class AuthorizationAnswer(NamedTuple):
    """The answer of the bookies when none denied."""

    by: str | None
    """The bookie that granted the permission; ``None``: no bookie could answer."""
    too_old: bool = False
    """Whether a bookie answered that does not know this kind of request."""


async def authorize(
    world: ClientWorld, permission: Permission, command: str = "", arguments: Sequence[str] = ("",)
) -> AuthorizationAnswer:
    """Ask bookies one after another whether this process has a permission; at most ``TOTAL_SECONDS`` in total.

    Args:
        command: the command that the granting bookie writes to its audit log; empty: none.
        arguments: the arguments of the command, one part for each line of the audit log.

    Raises:
        AccessDenied: a bookie denied the permission.
        MetadataUnavailable: the registered bookies cannot be listed.
    """
    living = world.rng.fork("authorization").shuffled(list(await world.membership.bookies()))
    asked: list[asyncio.Task[AuthorizationAnswer]] = []
    tasks, too_old = client_tasks("authorization"), False
    try:
        async with asyncio.timeout(TOTAL_SECONDS):
            while living or asked:
                if living:
                    work = _ask(world, living.pop(0), permission, command, arguments)
                    asked.append(tasks.spawn(work, name="ask"))
                await asyncio.wait(
                    asked, timeout=HEDGE_SECONDS if living else None, return_when=asyncio.FIRST_COMPLETED
                )
                for said in [each.result() for each in asked if each.done()]:
                    if said.by is not None:
                        return said
                    too_old |= said.too_old
                asked = [each for each in asked if not each.done()]
    except TimeoutError:
        _log.info("no bookie answers whether a change is authorized", seconds=TOTAL_SECONDS)
    finally:
        await tasks.close()
    return AuthorizationAnswer(None, too_old)


async def _ask(
    world: ClientWorld, bookie_id: str, permission: Permission, command: str, arguments: Sequence[str]
) -> AuthorizationAnswer:
    try:
        connection = await world.connections.get(bookie_id)
        for part in arguments:
            await connection.authorize(permission, command, part)
    except (AccessDenied, Unauthenticated) as error:
        what = f"'{command}'" if command else f"the permission to {permission.value}"
        raise AccessDenied(f"{what} is refused by {bookie_id}: {error.message}") from error
    except (InvalidArgument, PeerError) as error:
        _log.info("a bookie cannot answer whether a change is authorized", bookie_id=bookie_id, error=error.message)
        return AuthorizationAnswer(None, isinstance(error, InvalidArgument))
    return AuthorizationAnswer(bookie_id)


class WriteGuard:
    """Guards metadata changes of a client that has no access rules of its own: it asks a bookie.

    The authorization is renewed in the background while the client makes changes. It stays valid while no bookie can
    answer: an ensemble change must neither fail nor wait because bookies hang.

    Args:
        name: the client's name, for messages.
        ask: asks for the write permission.
        by_role: whether the role in the client's certificate permits writing; used if bookies are too old to answer.
    """

    def __init__(
        self,
        name: str,
        clock: Clock,
        tasks: Tasks,
        ask: Callable[[], Awaitable[AuthorizationAnswer]],
        *,
        by_role: bool = False,
    ) -> None:
        self._name = name
        self._clock = clock
        self._tasks = tasks
        self._ask = ask
        self._by_role = by_role
        self._allowed_at: float | None = None
        self._request: asyncio.Task[TallybookError | None] | None = None
        self._requested_at = 0.0

    def allow(self) -> None:
        """Take changes as authorized: a broader permission was granted."""
        self._allowed_at = self._clock.monotonic()

    async def __call__(self, change: str) -> None:
        """Return if ``change`` is authorized.

        Raises:
            AccessDenied: it is not.
            MetadataUnavailable: no bookie can answer, and none has granted it before.
            HandleClosed: the client was closed meanwhile.
        """
        now, allowed_at = self._clock.monotonic(), self._allowed_at
        if allowed_at is not None and now < allowed_at + RENEW_SECONDS:
            return
        if self._request is None or self._request.done():
            self._request, self._requested_at = (
                self._tasks.spawn(self._renew(), name="authorization", detached=True),
                now,
            )
        request = self._request
        if allowed_at is None:
            await asyncio.wait([request])
        elif now >= allowed_at + RENEWAL_WAIT_AFTER_SECONDS and now < self._requested_at + RENEWAL_WAIT_SECONDS:
            await asyncio.wait([request], timeout=self._requested_at + RENEWAL_WAIT_SECONDS - now)
        if request.cancelled():
            raise HandleClosed(f"the client is closed: {change} was not done")
        error = request.result() if request.done() else None
        if error is not None:
            raise type(error)(f"{error.message}: {change} was not done") from error

    async def _renew(self) -> TallybookError | None:
        """Ask again; return the error if the client is not authorized."""
        try:
            said = await self._ask()
        except AccessDenied as error:
            self._allowed_at = None
            return error
        except MetadataUnavailable as error:
            if self._allowed_at is None:
                return error
            said = AuthorizationAnswer(None)
        if said.by is None and self._allowed_at is None and not (said.too_old and self._by_role):
            return MetadataUnavailable(f"no bookie can say whether {self._name} may change the metadata")
        self.allow()
        return None
