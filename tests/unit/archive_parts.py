"""Archive objects in memory: a store that counts its reads, and objects made of batches of payloads."""

import asyncio
from collections.abc import Sequence

from tallybook.archive.encoder import EncoderOptions, ObjectEncoder
from tallybook.archive.object_writer import receipts
from tallybook.archive.objects.memory import MemoryObjectStore
from tallybook.archive.verifier import VerifiedLedger
from tallybook.core.batch import encode_batch, verify_batch
from tallybook.metadata.ledger.archived import Receipt
from tallybook.runtime.clock import RealClock
from tallybook.runtime.rng import SeededRng
from tallybook.runtime.tasks import Tasks

KEY = "ledgers/x.parquet"
WRITTEN_AT_US = 1_000
"""The time of entry 0; a batch is written at this time plus its first entry id."""


class CountingStore(MemoryObjectStore):
    """Remembers every ranged read, and may fail one."""

    def __init__(self) -> None:
        super().__init__(RealClock())
        self.reads: list[tuple[int, int]] = []
        self.fails: dict[int, Exception] = {}

    async def read(self, key: str, offset: int, size: int) -> bytes:
        self.reads.append((offset, size))
        await asyncio.sleep(0)
        if (error := self.fails.get(len(self.reads) - 1)) is not None:
            raise error
        return await super().read(key, offset, size)


def new_tasks() -> Tasks:
    def died(name: str, error: BaseException) -> None:
        raise AssertionError(name) from error

    return Tasks("archive", died)


def batches(count: int, size: int, per_batch: int, seed: int = 1) -> list[list[bytes]]:
    """Random payloads of one size, in batches."""
    rng = SeededRng(seed)
    payloads = [rng.token(size) for _ in range(count)]
    return [payloads[at : at + per_batch] for at in range(0, count, per_batch)]


async def put_object(
    store: MemoryObjectStore,
    ledgers: dict[int, Sequence[Sequence[bytes]]],
    options: EncoderOptions | None = None,
    name: str = "x",
) -> dict[int, Receipt]:
    """Put ledgers, given as batches of payloads, into one object."""
    encoder, found = ObjectEncoder(name, 17, options), {}
    for ledger_id, of_ledger in ledgers.items():
        encoder.begin(ledger_id, b"")
        first = length = 0
        for payloads in of_ledger:
            length += sum(map(len, payloads))
            at_us = WRITTEN_AT_US + first
            batch = encode_batch(ledger_id, first, payloads, lac=-1, ledger_length=length, written_at_us=at_us)
            encoder.add(batch, verify_batch(batch))
            first += len(payloads)
        ledger = encoder.end()
        found[ledger_id] = VerifiedLedger(ledger.entries, ledger.payload_bytes, ledger.rolling_crc)
    encoded = encoder.finish()
    await store.put(KEY, b"".join(encoder.take()))
    return receipts(encoded, found, KEY, 17)
