"""Records in ZooKeeper: one node each, below folders that are made when a record first needs them.

A listing asks for one folder at a time, in the order of names, and no further than its page needs. ZooKeeper answers
with all names of a folder in one message of at most 1 MiB, which bounds how many records one folder may hold: about
10,000 with names of 100 bytes.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError

from tallybook.core.errors import MetadataOutcomeUnknown

from ..rules import check_record_name, check_record_prefix, check_record_value
from ..store import BadVersion, Ok, Record, Unknown, WriteResult
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

    async def read(self, name: str, *, linearizable: bool) -> Record | None:
        """The record under ``name``, or ``None``; never older than what this client read or wrote before."""
        path = self._layout.record(check_record_name(name))
        [found] = await self._session.ask(get(path), linearizable=linearizable, optional=True)
        return None if found is None else Record(bytes(found[0]), found[1].version)

    async def write(self, name: str, value: bytes, expected_version: int | None) -> WriteResult:
        """Replace the record if it still has ``expected_version``, or make it if that is ``None``."""
        path = self._layout.record(check_record_name(name))
        check_record_value(name, value)
        if expected_version is None:
            return await self._make(path, value)
        return await compare_and_set(self._session, path, value, expected_version)

    async def _make(self, path: str, value: bytes) -> WriteResult:
        request = create(path, value)
        try:
            try:
                await self._session.tell(request)
            except NoNodeError:
                await create_path(self._session, path.rpartition("/")[0])
                await self._session.tell(request)
        except NodeExistsError:
            return BadVersion()
        except MetadataOutcomeUnknown as error:
            return Unknown(error.message)
        return Ok(0)

    async def delete(self, name: str, expected_version: int) -> WriteResult:
        """Remove the record if it still has ``expected_version``."""
        path = self._layout.record(check_record_name(name))
        if expected_version < 0:
            # ZooKeeper takes a negative version for "any".
            return BadVersion()
        try:
            await self._session.tell(delete(path, expected_version))
        except (BadVersionError, NoNodeError):
            return BadVersion()
        except MetadataOutcomeUnknown as error:
            return Unknown(error.message)
        return Ok(expected_version + 1)

    async def names(self, prefix: str, after: str, limit: int) -> list[str]:
        """Up to ``limit`` names that begin with ``prefix`` and come after ``after``, in order of code points.

        Raises:
            MetadataUnavailable: ZooKeeper does not answer.
            DamagedFile: there are nodes that do not belong to the layout.
        """
        check_record_prefix(prefix)
        check_record_prefix(after)
        # What comes later in this session sees at least what this sync saw.
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
        """Names in ``folder``, and in the folders in it, that begin with ``prefix`` and come after ``after``."""
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
