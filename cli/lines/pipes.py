"""Reads standard input and writes standard output in large pieces, without blocking the event loop.

Pipes are read when the loop reports them readable, so that Ctrl-C never waits for a pipe without input. Files, which
cannot be polled, are read on a thread, and output is written on a thread.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Final

from tallybook.core.errors import EntryTooLarge
from tallybook.core.limits import KIB, MAX_ENTRY_BYTES
from tallybook.runtime.tasks import Workers

from ..standard_output import write_some

STDIN: Final = 0
PIECE_BYTES: Final = 256 * KIB


async def read_lines(descriptor: int, workers: Workers) -> AsyncGenerator[list[bytes], None]:
    """Lines of ``descriptor`` without their newlines, as many at a time as one read returns.

    An unterminated last line counts. Memory: one piece and the longest line.

    Raises:
        EntryTooLarge: a line is longer than an entry may be; the lines before it have been yielded.
    """
    rest: list[bytes] = []
    rest_bytes = 0
    complete = 0
    async with aclosing(read_pieces(descriptor, workers)) as pieces:
        async for piece in pieces:
            lines = piece.split(b"\n")
            last = lines.pop()
            if lines:
                # Other lines lie within one piece, so they are not too long.
                _check_length(complete + 1, rest_bytes + len(lines[0]))
                rest.append(lines[0])
                lines[0] = b"".join(rest)
                rest, rest_bytes = [], 0
                complete += len(lines)
                yield lines
            if last:
                rest.append(last)
                rest_bytes += len(last)
                _check_length(complete + 1, rest_bytes)
    if rest:
        yield [b"".join(rest)]


def _check_length(number: int, size: int) -> None:
    if size > MAX_ENTRY_BYTES:
        raise EntryTooLarge(f"line {number} has more than the {MAX_ENTRY_BYTES} bytes that an entry may have")


async def read_pieces(descriptor: int, workers: Workers) -> AsyncGenerator[bytes, None]:
    """The contents of ``descriptor`` in pieces, until its end."""
    pollable = _pollable(descriptor)
    while True:
        if pollable:
            await _readable(descriptor)
            piece = os.read(descriptor, PIECE_BYTES)
        else:
            piece = await workers.run(os.read, descriptor, PIECE_BYTES)
        if not piece:
            return
        yield piece


async def write_all(descriptor: int, parts: Sequence[bytes], workers: Workers) -> None:
    """Write ``parts`` in order.

    Raises:
        OutputFailed: they cannot be written.
        BrokenPipeError: the reader has exited.
    """
    await workers.run(_write_all, descriptor, b"".join(parts))


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[write_some(descriptor, view) :]


def _pollable(descriptor: int) -> bool:
    """Whether the loop can poll the descriptor. It cannot poll files."""
    loop = asyncio.get_running_loop()
    try:
        loop.add_reader(descriptor, _nothing)
    except PermissionError:
        return False
    loop.remove_reader(descriptor)
    return True


async def _readable(descriptor: int) -> None:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(descriptor, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(descriptor)


def _nothing() -> None:
    """Callback for the probe in ``_pollable``."""
