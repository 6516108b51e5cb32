"""A stream half-closed by its client in the middle of a message: nothing of that message is accepted."""

import asyncio
import struct

import pytest

from tallybook.core.errors import EntryAbsent
from tallybook.wire import messages as wire
from tallybook.wire.batches import frame_batch

from .grpc_port import DATA, HELLO, batch, begin_call, ended, frame, message, served

DEADLINE_SECONDS = 30
END_STREAM = 1


async def test_a_stream_half_closed_in_the_middle_of_a_batch_leaves_nothing_of_it():
    async with served() as port:
        reader, writer = await port.http2()
        whole = wire.encode_attach(wire.Attach(1, b"")) + frame_batch(batch(1)) + frame_batch(batch(2, 1000))
        cut = struct.pack(">BI", 0, len(whole)) + whole[:-500]
        writer.write(begin_call() + message(HELLO) + frame(DATA, END_STREAM, 1, cut))
        await ended(reader)
        async with asyncio.timeout(DEADLINE_SECONDS):
            while port.service.stream_count:  # noqa: ASYNC110 (no notification)
                await asyncio.sleep(0.01)
        assert (await port.bookie.read_lac(1)).lac == -1
        with pytest.raises(EntryAbsent):
            await port.bookie.read_entry(1, 1)
        writer.close()
