"""Records in ZooKeeper: one node each, below folders that are created on demand.

A listing reads one folder at a time, ordered by name, and no further than its page needs. ZooKeeper answers with all
names of a folder in one message of at most 1 MiB, which limits the records of a folder: about 10,000 with names of 100
bytes.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError

from tallybook.core.errors import MetadataOutcomeUnknown

from ..rules import check_record_name, check_record_prefix, check_record_value
from ..store import BadVersion, MetadataRecord, Ok, Unknown, WriteResult
from .compare_and_set import compare_and_set
from .layout import Layout, record_entries
from .requests import children, create, delete, get
from .session import Session
from .tree import create_path


class ZooKeeperRecords:
    """The nodes below ``records``."""

    def __init__(self, session: Session, layout: Layout) -> None:
        self._session = session
        self._layout = layout

    async def read(self, name: str, *, linearizable: bool) -> MetadataRecord | None:
        """The record under ``name``, or ``None``; never older than this client's earlier reads and writes."""
        path = self._layout.record(check_record_name(name))
        [found] = await self._session.ask(get(path), linearizable=linearizable, optional=True)
        return None if found is None else MetadataRecord(bytes(found[0]), found[1].version)

    async def write(self, name: str, value: bytes, expected_version: int | None) -> WriteResult:
        """Replace the record if it still has ``expected_version``, or create it if that is ``None``."""
        path = self._layout.record(check_record_name(name))
        check_record_value(name, value)
        if expected_version is None:
            return await self._make(path, value)
        return await compare_and_set(self._session, path, value, expected_version)

    async def _make(self, path: str, value: bytes) -> WriteResult:
        request = create(path, value)
        try:
            try:
                await self._session.send_once(request)
            except NoNodeError:
                await create_path(self._session, path.rpartition("/")[0])
                await self._session.send_once(request)
        except NodeExistsError:
            return BadVersion()
        except MetadataOutcomeUnknown as error:
            return Unknown(error.message)
        return Ok(0)

    async def delete(self, name: str, expected_version: int) -> WriteResult:
        """Remove the record if it still has ``expected_version``."""
        path = self._layout.record(check_record_name(name))
        if expected_version < 0:
            # ZooKeeper treats a negative version as "any".
            return BadVersion()
        try:
            await self._session.send_once(delete(path, expected_version))
        except (BadVersionError, NoNodeError):
            return BadVersion()
        except MetadataOutcomeUnknown as error:
            return Unknown(error.message)
        return Ok(expected_version + 1)

    async def names(self, prefix: str, after: str, limit: int) -> list[str]:
        """Up to ``limit`` names with ``prefix`` after ``after``, ordered by code points.

        Raises:
            MetadataUnavailable: ZooKeeper does not answer.
            DamagedFile: there are nodes that do not belong to the layout.
        """
        check_record_prefix(prefix)
        check_record_prefix(after)
        # Later requests of this session see at least the state of this sync.
        await self._session.ask(linearizable=True)
        found: list[str] = []
        folder = prefix.rpartition("/")[0]
        if "" in folder.split("/") and folder:
            return found  # No name has an empty segment.
        async for name in self._walk(folder, prefix, after):
            found.append(name)
            if len(found) == limit:
                break
        return found

    async def _walk(self, folder: str, prefix: str, after: str) -> AsyncIterator[str]:
        """Names in ``folder`` and its folders, with ``prefix``, after ``after``."""
        path = self._layout.record_folder(folder)
        [nodes] = await self._session.ask(children(path), optional=True)
        for entry in record_entries(nodes or [], folder, path):
            if not entry.startswith(prefix):
                continue
            if not entry.endswith("/"):
                if entry > after:
                    yield entry
            elif entry > after or after.startswith(entry):
                async for name in self._walk(entry.removesuffix("/"), prefix, after):
                    yield name
