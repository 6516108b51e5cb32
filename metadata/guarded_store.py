"""Metadata store wrapper that calls a guard before each change: for processes without write access, or with unknown
rights.

It protects against mistakes in our own programs. File permissions (SQLite) and node ACLs (ZooKeeper) bind all programs.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import ParamSpec, TypeAlias, TypeVar

from tallybook.core.errors import AccessDenied

from .client import MetadataClient
from .store import Membership, MetadataStore
from .wrapped_store import WrappedMembership, WrappedStore

P = ParamSpec("P")
T = TypeVar("T")

Guard: TypeAlias = Callable[[str], Awaitable[None]]
"""Raises ``AccessDenied`` unless the described change is permitted."""


def guarded(client: MetadataClient, guard: Guard) -> MetadataClient:
    """Wrap ``client`` so that ``guard`` is called before each change."""
    return MetadataClient(
        GuardedStore(client.store, guard), GuardedMembership(client.membership, guard), client.load, client.link
    )


def read_only(client: MetadataClient, reason: str) -> MetadataClient:
    """Wrap ``client`` so that all changes are refused. ``reason`` names the identity and why it may not write."""

    async def refuse(change: str) -> None:
        raise AccessDenied(f"{reason}: {change} is refused, nothing was changed")

    return guarded(client, refuse)


class GuardedStore(WrappedStore):
    """A ``MetadataStore``."""

    def __init__(self, store: MetadataStore, guard: Guard) -> None:
        super().__init__(store)
        self._guard = guard

    async def _write(self, change: str, call: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        await self._guard(change)
        return await call(*args, **kwargs)


class GuardedMembership(WrappedMembership):
    """A ``Membership``."""

    def __init__(self, membership: Membership, guard: Guard) -> None:
        super().__init__(membership)
        self._guard = guard

    async def _write(self, change: str, call: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        await self._guard(change)
        return await call(*args, **kwargs)
