"""``offload/bucket/dead_space.py``: which objects an offloader reads to learn what they contained."""

from types import SimpleNamespace

import pytest

from tallybook.archive.format.schema import object_key
from tallybook.archive.objects.memory import MemoryObjectStore
from tallybook.core.errors import ObjectMissing
from tallybook.core.quorum import Quorum
from tallybook.core.settings import OffloadSettings
from tallybook.metadata.ledger.archived import IndexPart, Receipt
from tallybook.metadata.ledger.model import Fragment, LedgerMetadata, LedgerState
from tallybook.offload.bucket import dead_space
from tallybook.offload.bucket.dead_space import DeadSpace
from tallybook.runtime.clock import RealClock

UUID = "00000000-0000-4000-8000-{:012d}"


def ledger_in_set(number: int) -> LedgerMetadata:
    """A remaining ledger of an object with many ledgers."""
    key = object_key(UUID.format(number), [number, number + 100])
    receipt = Receipt(UUID.format(number), key, 99, bytes(32), IndexPart(4, 1, 1, 0), 1, 5, 0, 0)
    return LedgerMetadata(
        number, Quorum(1, 1, 1), (Fragment(0, ("a",)),), "creator", 0,
        state=LedgerState.CLOSED, last_entry_id=0, length=5, archived=receipt,
    )  # fmt: skip


class Reader:
    """Directories of sets that held much; some sets are gone."""

    def __init__(self, gone: set[str]) -> None:
        self.gone = gone
        self.asked: list[str] = []

    async def directory(self, receipt: Receipt) -> object:
        self.asked.append(receipt.key)
        if receipt.key in self.gone:
            raise ObjectMissing(receipt.key)
        return SimpleNamespace(ledgers=[SimpleNamespace(payload_bytes=1_000_000)])


async def test_objects_that_are_gone_do_not_keep_others_from_being_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_space, "MAX_READS_PER_PASS", 2)
    ledgers = [ledger_in_set(number) for number in range(6)]
    keys = [metadata.archived.key for metadata in ledgers if metadata.archived]
    reader = Reader(set(keys[:4]))
    looked = DeadSpace(MemoryObjectStore(RealClock()), reader, OffloadSettings())  # type: ignore[arg-type]
    found = [await looked.mostly_dead(ledgers, keys) for _ in range(3)]
    assert sorted(reader.asked) == keys, "each is asked once before any is asked again"
    assert found[-1] == set(keys[4:])
    for _ in range(2):
        await looked.mostly_dead(ledgers, keys)
    assert sorted(reader.asked[6:]) == keys[:4], "those that failed are asked in turn"
    reader.gone.clear()
    await looked.mostly_dead(ledgers, keys)
    assert await looked.mostly_dead(ledgers, keys) == set(keys)
