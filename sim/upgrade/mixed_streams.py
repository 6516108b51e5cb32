"""Writes a stream through a gateway, or reads streams through it, as a program in any language would; see the package.

    python -P mixed_streams.py GATEWAY write TAG      until SIGTERM; then it prints how many records were confirmed
    python -P mixed_streams.py GATEWAY read           what it is given of that on standard input

What is read has to be all that was confirmed, once, in its order. It prints one line of JSON.
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

AT_ONCE: Final = 8
PAUSE_SECONDS: Final = 0.2


def payload(tag: str, number: int) -> bytes:
    """One record of the stream that the load called ``tag`` has written."""
    return f"{tag} {number} ".encode() + b"tally" * (number * 37 % 100)


class CutOff(Exception):
    """The gateway has ended a call."""


class Load:
    """Appends records, each with an id by which it is known again when it is sent once more.

    Attributes:
        confirmed: how many records.
        errors: how often each kind was met.
    """

    def __init__(self, stub: Any, tag: str) -> None:
        self._stub = stub
        self._tag = tag
        self._made = False
        self.confirmed = 0
        self.errors: Counter[str] = Counter()
        self.stopping = asyncio.Event()

    async def run(self) -> None:
        """Until told to stop."""
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
            numbers = range(self.confirmed, self.confirmed + AT_ONCE)
            records = [pb.NewRecord(payload=payload(self._tag, each), dedup_id=b"%d" % each) for each in numbers]
            await call.write(pb.StreamAppendRequest(records=records))
            acked = 0
            while acked < AT_ONCE:
                acked += (await self._reply(call)).ack.count
            self.confirmed += AT_ONCE
        await call.write(pb.StreamAppendRequest(close=pb.StreamAppendClose()))
        while not (await self._reply(call)).HasField("closed"):
            pass

    async def _make(self) -> None:
        try:
            await self._stub.Create(pb.CreateStreamRequest(name=self._tag))
        except grpc.aio.AioRpcError as error:
            # An attempt of ours that came to no answer.
            if error.code() is not grpc.StatusCode.ALREADY_EXISTS:
                raise
        self._made = True

    async def _reply(self, call: Any) -> Any:
        reply = await call.read()
        if reply is grpc.aio.EOF:
            raise CutOff
        return reply


async def write(stub: Any, tag: str) -> dict[str, Any]:
    """Write until SIGTERM, which it can be told once it has said that it begins."""
    load = Load(stub, tag)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, load.stopping.set)
    print(json.dumps({"begins": tag}), flush=True)
    await load.run()
    return {"tag": tag, "confirmed": {tag: load.confirmed}, "errors": load.errors}


async def read(stub: Any, written: list[dict[str, Any]]) -> dict[str, Any]:
    """Read all of it; ``lost`` names what is not as it was confirmed."""
    count, lost = 0, []
    for load in written:
        tag, confirmed = load["tag"], load["confirmed"][load["tag"]]
        replies = stub.Read(pb.ReadStreamRequest(name=tag))
        found = [record.payload async for reply in replies for record in reply.records.records]
        count += len(found)
        expected = [payload(tag, number) for number in range(len(found))]
        # Of an append that failed any part may be there, behind what was confirmed.
        if found != expected or not confirmed <= len(found) <= confirmed + AT_ONCE:
            lost.append([tag, confirmed, len(found)])
    return {"entries": count, "lost": lost}


async def main(gateway: str, what: str, *rest: str) -> None:
    """Do one of the two."""
    async with grpc.aio.insecure_channel(gateway) as channel:
        stub = StreamServiceStub(channel)  # type: ignore[no-untyped-call]
        found = await write(stub, *rest) if what == "write" else await read(stub, json.loads(sys.stdin.readline()))
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
