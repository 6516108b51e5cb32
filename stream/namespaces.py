"""Namespaces: names of streams that belong together, and what such streams are made with."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Final

from tallybook.core.errors import DamagedFile, InvalidArgument, NoSuchNamespace
from tallybook.metadata.record_format import check_format
from tallybook.metadata.record_json import NOT_UNDERSTOOD
from tallybook.metadata.record_update import RecordUpdater
from tallybook.metadata.store import MetadataStore
from tallybook.metadata.transactions import names

from .names import DEFAULT_NAMESPACE, NAMESPACES, namespace_record
from .policy import StreamPolicy

FORMAT: Final = 1


class Namespaces:
    """The namespaces of a cluster. The default one is there always."""

    def __init__(self, store: MetadataStore, updater: RecordUpdater) -> None:
        self._store = store
        self._updater = updater

    async def policy(self, namespace: str) -> StreamPolicy:
        """What its streams are made with.

        Raises:
            NoSuchNamespace: it was never made.
            MetadataUnavailable: the store does not answer.
            DamagedFile, NewerFormat: the record cannot be understood.
        """
        record = namespace_record(namespace)
        found = await self._store.read_record(record, linearizable=True)
        if found is not None:
            return _decode(record, found.value)
        if namespace == DEFAULT_NAMESPACE:
            return StreamPolicy()
        raise NoSuchNamespace(f"there is no namespace {namespace!r}")

    async def set(self, namespace: str, policy: StreamPolicy) -> None:
        """Make a namespace, or change it.

        Raises:
            MetadataConflict, MetadataUnavailable, MetadataOutcomeUnknown: the store does not settle it.
        """
        found = {"format": FORMAT, "policy": policy.model_dump(mode="json", exclude_defaults=True)}
        value = json.dumps(found, separators=(",", ":")).encode()
        await self._updater.update(namespace_record(namespace), lambda _found: value)

    async def delete(self, namespace: str) -> None:
        """Remove a namespace.

        Raises:
            As ``set``.
        """
        await self._updater.delete(namespace_record(namespace))

    async def list(self, after: str = "") -> AsyncIterator[str]:
        """Their names that come after ``after``, in order.

        Raises:
            MetadataUnavailable: there may be more than the store tells.
        """
        found = {DEFAULT_NAMESPACE} | {
            record.removeprefix(NAMESPACES) async for record in names(self._store, NAMESPACES)
        }
        for name in sorted(found):
            if name > after:
                yield name


def _decode(record: str, value: bytes) -> StreamPolicy:
    try:
        found = json.loads(value)
        check_format(record, found, FORMAT)
        if found["format"] != FORMAT:
            raise DamagedFile(f"the record {record} is of format {found['format']}; this Tallybook knows {FORMAT}")
        return StreamPolicy.of(None, **found["policy"])
    except (*NOT_UNDERSTOOD, InvalidArgument) as error:
        raise DamagedFile(f"the record {record} cannot be understood: {error}") from error
