"""Kinds of metadata records besides ledgers, and how fsck checks each kind."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final, NamedTuple

from ..store import MetadataStore


class RecordKind(NamedTuple):
    """A kind of record, identified by a name prefix.

    Attributes:
        understand: decodes a record; yields ids of ledgers that must exist, and problems as sentences. Raises
            ``DamagedFile`` if the record cannot be decoded.
        remedy: what to do about a record that cannot be decoded.
        removable: whether a record that cannot be decoded may be deleted, because nothing depends on it.
    """

    prefix: str
    what: str
    understand: Callable[[MetadataStore, str, bytes], AsyncIterator[int | str]]
    remedy: str
    removable: bool = False


class LedgerOwner(NamedTuple):
    """A kind of record that owns ledgers, for example streams.

    Attributes:
        key: key in a ledger's custom metadata; its value identifies the owner.
        is_named: called with the ledger's id and that value: whether the owner names the ledger, or cannot be decoded.
    """

    key: str
    what: str
    is_named: Callable[[MetadataStore, int, bytes], Awaitable[bool]]


_NAMED: Final[tuple[int, ...]] = ()
"""Ledgers that such a record names."""


def decoding(decode: Callable[[str, bytes], object]) -> Callable[[MetadataStore, str, bytes], AsyncIterator[int | str]]:
    """``RecordKind.understand`` for records that name no ledgers: only decodes them."""

    async def understand(_store: MetadataStore, name: str, value: bytes) -> AsyncIterator[int | str]:
        decode(name, value)
        for each in _NAMED:
            yield each

    return understand
