"""Namespaces: groups of stream names with a default policy, and a quota of stored bytes for all of them together."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Annotated, Final

from pydantic import ByteSize, Field, TypeAdapter, ValidationError

from tallybook.core.errors import InvalidArgument, NoSuchNamespace
from tallybook.core.limits import KIB
from tallybook.core.settings.types import reason_of
from tallybook.metadata.records.format import load_json, reporting_damage
from tallybook.metadata.records.listing import record_names
from tallybook.metadata.records.update import RecordUpdater
from tallybook.metadata.store import MetadataStore

from .info import NamespaceInfo
from .names import DEFAULT_NAMESPACE, NAMESPACES, namespace_record, usage_record
from .policy import StreamPolicy

FORMAT: Final = 2
"""The newest format, for namespaces with limits in bytes; as for heads (``head_codec``)."""
FIRST_FORMAT: Final = 1

_TOTAL: Final = TypeAdapter(Annotated[ByteSize, Field(ge=KIB)])


class Namespaces:
    """The namespaces of a cluster. The default one always exists."""

    def __init__(self, store: MetadataStore, updater: RecordUpdater) -> None:
        self._store = store
        self._updater = updater

    async def policy(self, namespace: str) -> StreamPolicy:
        """The default policy of a namespace's streams.

        Raises:
            NoSuchNamespace: it was never created.
            MetadataUnavailable: the store does not answer.
            DamagedFile, NewerFormat: the record cannot be decoded.
        """
        found = await self._read(namespace)
        if found is not None:
            return found[0]
        if namespace == DEFAULT_NAMESPACE:
            return StreamPolicy()
        raise _missing(namespace)

    async def info(self, namespace: str) -> NamespaceInfo:
        """The default policy and the quota of a namespace, and how much of the quota is used.

        Raises:
            As ``policy``.
        """
        found = await self._read(namespace)
        policy = await self.policy(namespace) if found is None else found[0]
        total = None if found is None else found[1]
        return NamespaceInfo(namespace, policy, total, None if total is None else await self._usage(namespace))

    async def quota(self, namespace: str) -> tuple[int, int] | None:
        """Quota and stored bytes, as of the last pass of the janitor; ``None``: no quota.

        Raises:
            MetadataUnavailable, DamagedFile, NewerFormat: as ``policy``.
        """
        found = await self._read(namespace)
        if found is None or found[1] is None:
            return None
        return found[1], await self._usage(namespace) or 0

    async def _read(self, namespace: str) -> tuple[StreamPolicy, int | None] | None:
        record = namespace_record(namespace)
        found = await self._store.read_record(record, linearizable=True)
        return None if found is None else _decode(record, found.value)

    async def _usage(self, namespace: str) -> int | None:
        record = usage_record(namespace)
        found = await self._store.read_record(record)
        return None if found is None else _decode_usage(record, found.value)

    async def set(self, namespace: str, policy: StreamPolicy, total_bytes: int | str | None = None) -> None:
        """Create a namespace, or change its policy and quota.

        Raises:
            InvalidArgument: the quota is not a size.
            MetadataConflict, MetadataUnavailable, MetadataOutcomeUnknown: the change failed, or its outcome is unknown.
        """
        found: dict[str, object] = {"format": FORMAT if policy.has_limits or total_bytes is not None else FIRST_FORMAT}
        found["policy"] = policy.model_dump(mode="json", exclude_defaults=True)
        if total_bytes is not None:
            try:
                found["total_bytes"] = int(_TOTAL.validate_python(total_bytes))
            except ValidationError as error:
                raise InvalidArgument(f"the quota of a namespace: {reason_of(error.errors()[0])}") from error
        value = json.dumps(found, separators=(",", ":")).encode()
        await self._updater.update(namespace_record(namespace), lambda _found: value)

    async def set_usage(self, namespace: str, size_bytes: int) -> None:
        """Record how much the streams of a namespace store.

        Raises:
            As ``set``.
        """
        value = json.dumps({"format": FIRST_FORMAT, "bytes": size_bytes}, separators=(",", ":")).encode()
        found = await self._store.read_record(usage_record(namespace))
        if found is None or found.value != value:
            await self._updater.update(usage_record(namespace), lambda _found: value)

    async def delete(self, namespace: str) -> None:
        """Delete a namespace.

        Raises:
            NoSuchNamespace: it was never created. The default one exists all the same, with the general defaults.
            As ``set``.
        """
        record = namespace_record(namespace)
        if await self._store.read_record(record, linearizable=True) is None:
            raise _missing(namespace)
        await self._updater.delete(record)
        await self._updater.delete(usage_record(namespace))

    async def list(self, after: str = "") -> AsyncIterator[str]:
        """Names of the namespaces after ``after``, in order.

        Raises:
            MetadataUnavailable: the store does not answer; the listing is incomplete.
        """
        found = {DEFAULT_NAMESPACE} | {
            record.removeprefix(NAMESPACES) async for record in record_names(self._store, NAMESPACES)
        }
        for name in sorted(found):
            if name > after:
                yield name


def _missing(namespace: str) -> NoSuchNamespace:
    if namespace == DEFAULT_NAMESPACE:
        return NoSuchNamespace(f"namespace {namespace!r} has no defaults of its own, and always exists")
    return NoSuchNamespace(f"there is no namespace {namespace!r}")


def _decode(record: str, value: bytes) -> tuple[StreamPolicy, int | None]:
    found = load_json(record, value, FORMAT, oldest=FIRST_FORMAT)
    with reporting_damage(record):
        total = found.get("total_bytes")
        return StreamPolicy.of(None, **found["policy"]), None if total is None else int(_TOTAL.validate_python(total))


def _decode_usage(record: str, value: bytes) -> int:
    found = load_json(record, value, oldest=FIRST_FORMAT)
    with reporting_damage(record):
        return int(found["bytes"])
