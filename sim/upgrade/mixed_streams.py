"""Writes or reads a stream through a gateway, with plain gRPC as in any language. A program; see the package.

    python -P mixed_streams.py GATEWAY write TAG      write until SIGTERM; then print how many records were confirmed
    python -P mixed_streams.py GATEWAY read           read the streams in such a report, given on standard input

Reading checks that every confirmed record is there once and in order. The result is one JSON line.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections import Counter
from typing import Any, Final

import grpc
import grpc.aio

from tallybook.proto import stream_pb2 as pb
from tallybook.proto.stream_pb2_grpc import StreamServiceStub

BATCH_ENTRIES: Final = 8
PAUSE_SECONDS: Final = 0.2


def payload(tag: str, number: int) -> bytes:
    """Record ``number`` of the stream of the load ``tag``."""
    return f"{tag} {number} ".encode() + b"tally" * (number * 37 % 100)


class CutOff(Exception):
    """The gateway ended a call."""


class MixedStreamLoad:
    """Appends records with dedup ids, so that they can be sent again.

    Attributes:
        confirmed: number of confirmed records.
        errors: counts of errors by status code.
    """

    def __init__(self, stub: Any, tag: str) -> None:
        self._stub = stub
        self._tag = tag
        self._made = False
        self.confirmed = 0
        self.errors: Counter[str] = Counter()
        self.stopping = asyncio.Event()

    async def run(self) -> None:
        """Write until ``stopping`` is set."""
        while not self.stopping.is_set():
            try:
                await self._call()
            except grpc.aio.AioRpcError as error:
                self.errors[error.code().name] += 1
                await asyncio.sleep(PAUSE_SECONDS)
            except CutOff:
                self.errors["CUT_OFF"] += 1

    async def _call(self) -> None:
        if not self._made:
            await self._make()
        call = self._stub.Append()
        await call.write(pb.StreamAppendRequest(open=pb.StreamAppendOpen(name=self._tag)))
        await self._reply(call)
        while not self.stopping.is_set():
            numbers = range(self.confirmed, self.confirmed + BATCH_ENTRIES)
            records = [pb.NewRecord(payload=payload(self._tag, each), dedup_id=b"%d" % each) for each in numbers]
            await call.write(pb.StreamAppendRequest(records=records))
            acked = 0
            while acked < BATCH_ENTRIES:
                acked += (await self._reply(call)).ack.count
            self.confirmed += BATCH_ENTRIES
        await call.write(pb.StreamAppendRequest(close=pb.StreamAppendClose()))
        while not (await self._reply(call)).HasField("closed"):
            pass

    async def _make(self) -> None:
        try:
            await self._stub.Create(pb.CreateStreamRequest(name=self._tag))
        except grpc.aio.AioRpcError as error:
            # An earlier attempt without an answer may have created it.
            if error.code() is not grpc.StatusCode.ALREADY_EXISTS:
                raise
        self._made = True

    async def _reply(self, call: Any) -> Any:
        reply = await call.read()
        if reply is grpc.aio.EOF:
            raise CutOff
        return reply


async def write(stub: Any, tag: str) -> dict[str, Any]:
    """Print a line, then write until SIGTERM."""
    load = MixedStreamLoad(stub, tag)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, load.stopping.set)
    print(json.dumps({"begins": tag}), flush=True)
    await load.run()
    return {"tag": tag, "confirmed": {tag: load.confirmed}, "errors": load.errors}


async def read(stub: Any, written: list[dict[str, Any]]) -> dict[str, Any]:
    """Read all streams; ``lost`` lists those that differ from what was confirmed."""
    count, lost = 0, []
    for load in written:
        tag, confirmed = load["tag"], load["confirmed"][load["tag"]]
        replies = stub.Read(pb.ReadStreamRequest(name=tag))
        found = [record.payload async for reply in replies for record in reply.records.records]
        count += len(found)
        expected = [payload(tag, number) for number in range(len(found))]
        # A failed append may have stored some records after the confirmed ones.
        if found != expected or not confirmed <= len(found) <= confirmed + BATCH_ENTRIES:
            lost.append([tag, confirmed, len(found)])
    return {"entries": count, "lost": lost}


async def main(gateway: str, what: str, *rest: str) -> None:
    """Write or read."""
    async with grpc.aio.insecure_channel(gateway) as channel:
        stub = StreamServiceStub(channel)  # type: ignore[no-untyped-call]
        found = await write(stub, *rest) if what == "write" else await read(stub, json.loads(sys.stdin.readline()))
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
