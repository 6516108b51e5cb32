"""Prints the entries of a ledger as lines, or as JSON objects."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from tallybook.client.reader.handle import LedgerReader
from tallybook.core.batch import Entry
from tallybook.core.errors import ReadBeyondLac
from tallybook.core.ids import NO_ENTRY, check_entry_id
from tallybook.core.limits import KIB
from tallybook.runtime.tasks import Workers

from .pipes import write_all

T = TypeVar("T")

Form = Callable[[Sequence[Entry]], bytes]
"""Formats entries for output."""

_WRITE_BYTES = 512 * KIB
_TAIL_ENTRIES = 1_000


def entries_as_lines(entries: Sequence[Entry]) -> bytes:
    """Each payload and a newline."""
    return b"\n".join([*(entry.payload for entry in entries), b""])


def entries_as_json(entries: Sequence[Entry]) -> bytes:
    """One object per line; a payload that is not UTF-8 is in base64."""
    return b"".join(json.dumps(_fields(entry)).encode() + b"\n" for entry in entries)


def _fields(entry: Entry) -> dict[str, object]:
    return {"entry_id": entry.entry_id, "written_at_us": entry.written_at_us, **as_text("payload", entry.payload)}


def as_text(name: str, value: bytes | None) -> dict[str, object]:
    """A JSON field with ``value`` as text; if it is not UTF-8, a field ``name_base64`` instead."""
    try:
        return {name: None if value is None else value.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(value or b"").decode()}


async def copy_range(
    reader: LedgerReader, first: int | None, last: int | None, form: Form, descriptor: int, workers: Workers
) -> None:
    """Write the entries ``first .. last`` to ``descriptor``; by default all that are confirmed.

    Raises:
        ReadBeyondLac: the range reaches past the last add confirmed.
        InvalidArgument: the ids are out of range, or the range is empty.
    """
    lac = reader.last_add_confirmed
    if first is None and last is None and lac == NO_ENTRY:
        return
    start = 0 if first is None else check_entry_id(first)
    end = lac if last is None else check_entry_id(last)
    if start > lac:
        raise _beyond(reader, start)
    output = Output(form, descriptor, workers)
    try:
        async for entries in reader.read_batches(start, end):
            await output.add(entries)
    finally:
        # Entries before an error are printed.
        await output.flush()


async def follow(reader: LedgerReader, first: int, form: Form, descriptor: int, workers: Workers) -> None:
    """Write entries from ``first`` on as they are confirmed, until the ledger is closed.

    Raises:
        ReadBeyondLac: it was closed before it got to ``first``. If ``first`` is the next entry, that is no error.
    """
    waiting: list[Entry] = []
    async for entry in reader.tail(first):
        waiting.append(entry)
        # After the last confirmed entry the tail waits, so print what there is.
        if entry.entry_id == reader.last_add_confirmed or len(waiting) >= _TAIL_ENTRIES:
            await write_all(descriptor, [form(waiting)], workers)
            waiting = []
    if first > reader.last_add_confirmed + 1:
        raise _beyond(reader, first)


def _beyond(reader: LedgerReader, entry_id: int) -> ReadBeyondLac:
    lac = reader.last_add_confirmed
    return ReadBeyondLac(f"ledger {reader.id}: entry {entry_id} is past the last add confirmed, {lac}")


class Output(Generic[T]):
    """Buffers output, so that it is written in large pieces.

    Args:
        form: formats entries or records for output.
    """

    def __init__(self, form: Callable[[Sequence[T]], bytes], descriptor: int, workers: Workers) -> None:
        self._form = form
        self._descriptor = descriptor
        self._workers = workers
        self._parts: list[bytes] = []
        self._size = 0

    async def add(self, entries: Sequence[T]) -> None:
        """Add entries or records to the buffer."""
        if not entries:
            return
        part = self._form(entries)
        self._parts.append(part)
        self._size += len(part)
        if self._size >= _WRITE_BYTES:
            await self.flush()

    async def flush(self) -> None:
        """Write the buffer.

        Raises:
            BrokenPipeError: the reader has exited.
        """
        parts, self._parts, self._size = self._parts, [], 0
        if parts:
            await write_all(self._descriptor, parts, self._workers)
