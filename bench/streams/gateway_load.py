"""Appends through a gateway, alternating with appends by the native client; prints one line of JSON.

python -m tallybook.bench.streams.gateway_load --metadata URI --gateway HOST:PORT --mib 256 --rounds 5

Both sides append entries of 64 KiB at the rate of the acknowledgements; through the gateway, one request per entry.
"""

from __future__ import annotations

import asyncio
import time
from typing import Annotated, Any, Final

import grpc
import typer

from tallybook.cli.measure.latency import median
from tallybook.client.background import client_tasks
from tallybook.client.client import Client
from tallybook.core.errors import check
from tallybook.core.limits import KIB, MIB
from tallybook.proto import ledger_pb2 as pb
from tallybook.proto.ledger_pb2_grpc import LedgerServiceStub
from tallybook.runtime.rng import SystemRng
from tallybook.runtime.tuning import tune_process

from ..equipment.programs import print_json_line
from ..gates import Figures

REQUEST_BYTES: Final = 64 * KIB
_GRACE_SECONDS: Final = 300.0


async def _native(client: Client, payload: bytes, count: int) -> float:
    """Seconds for ``count`` appends."""
    began = time.monotonic()
    async with await client.create_ledger() as writer:
        await writer.append_many([payload] * count)
    return time.monotonic() - began


async def _through_gateway(stub: Any, payload: bytes, count: int) -> float:
    """Seconds for ``count`` appends."""
    began = time.monotonic()
    call = stub.Append()
    await call.write(pb.AppendRequest(open=pb.AppendOpen(create=pb.CreateRequest())))
    window = (await call.read()).opened.window
    credit, moved, cost = window.credit_bytes, asyncio.Event(), len(payload) + window.payload_overhead_bytes

    async def take_acks() -> None:
        nonlocal credit
        acked = 0
        while acked < count:
            ack = (await call.read()).ack
            acked += ack.count
            credit += ack.credit_bytes
            moved.set()

    tasks = client_tasks("load")
    acking = tasks.spawn(take_acks(), name="acks")
    request = pb.AppendRequest(payloads=[payload])
    for _ in range(count):
        while credit < cost:
            moved.clear()
            await moved.wait()
        credit -= cost
        await call.write(request)
    await acking
    await tasks.close()
    await call.write(pb.AppendRequest(close=pb.AppendClose()))
    closed = (await call.read()).closed
    await call.done_writing()
    check(closed.last_entry_id == count - 1, f"the ledger ends at {closed.last_entry_id}, not at {count - 1}")
    return time.monotonic() - began


def main(
    metadata: Annotated[str, typer.Option(help="URI of the metadata store.")],
    gateway: Annotated[str, typer.Option(help="Address of the gateway.")],
    mib: Annotated[int, typer.Option(help="How much is appended a turn.")] = 256,
    rounds: Annotated[int, typer.Option(help="How many turns each.")] = 5,
) -> None:
    """Append in turns; print both rates and their ratio."""

    async def work() -> Figures:
        payload, count = SystemRng().token(REQUEST_BYTES), mib * MIB // REQUEST_BYTES
        native, through = [], []
        async with Client(metadata) as client, grpc.aio.insecure_channel(gateway) as channel:
            stub = LedgerServiceStub(channel)  # type: ignore[no-untyped-call]
            for _ in range(rounds):
                native.append(mib / await _native(client, payload, count))
                through.append(mib / await _through_gateway(stub, payload, count))
        return {
            "gateway_mib_per_s": round(median(through), 1),
            "native_mib_per_s": round(median(native), 1),
            "gateway_ratio": round(median([one / other for one, other in zip(through, native, strict=True)]), 3),
        }

    async def bounded() -> Figures:
        return await asyncio.wait_for(work(), _GRACE_SECONDS)

    tune_process()
    print_json_line(asyncio.run(bounded()))


if __name__ == "__main__":
    typer.run(main)
