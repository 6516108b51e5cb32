"""A plain object beside a truncated encrypted copy may be the last good copy, and stays."""

import pytest

from tallybook.archive.format.schema import object_key
from tallybook.archive.objects.encryption.format import ENCRYPTED_FRAME_BYTES, TAG_BYTES
from tallybook.archive.objects.encryption.store import EncryptedStore
from tallybook.archive.objects.memory import MemoryObjectStore
from tallybook.offload.rekey import FAILED, SEALED, Rekeyed, rekey
from tallybook.runtime.clock import RealClock
from tallybook.runtime.tasks import InlineWorkers

from ..support.archive_keys import InMemoryKeys

KEY = object_key("00000000-0000-4000-8000-000000000001", [1])
SEALED_KEY = f"sealed/objects/{KEY}"
TEXT = bytes(range(256)) * 1200
"""Five frames."""


def store_of(below: MemoryObjectStore) -> EncryptedStore:
    return EncryptedStore(below, InlineWorkers(), InMemoryKeys(1))


async def seal_plain(below: MemoryObjectStore) -> Rekeyed:
    [done] = [each async for each in rekey(store_of(below), "k1", change=True, seal_plain=True, copy_key=bytes(32))]
    return done


async def both() -> MemoryObjectStore:
    """The state left by a run that was stopped just before it removed the plain object."""
    below = MemoryObjectStore(RealClock())
    await store_of(below).put(KEY, TEXT)
    await below.put(KEY, TEXT)
    return below


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda whole: b"", id="nothing"),
        pytest.param(lambda whole: whole[:TAG_BYTES], id="as much as an empty object has"),
        pytest.param(lambda whole: whole[: 2 * ENCRYPTED_FRAME_BYTES], id="two frames of five"),
        pytest.param(lambda whole: whole[:-1], id="all but a byte"),
        pytest.param(lambda whole: whole + b"\0", id="a byte more"),
        pytest.param(lambda whole: whole + bytes(2 * ENCRYPTED_FRAME_BYTES), id="two frames more"),
    ],
)
async def test_a_truncated_or_longer_encrypted_copy_does_not_cost_the_plain_object(change):
    below = await both()
    await below.put(SEALED_KEY, change(await below.read(SEALED_KEY, 0, (await below.info(SEALED_KEY)).size_bytes)))
    done = await seal_plain(below)
    assert (done.outcome, KEY in done.problem) == (FAILED, True)
    assert await below.read(KEY, 0, len(TEXT)) == TEXT


@pytest.mark.parametrize("sealed", [TEXT[:100_000], TEXT[:1], b"", TEXT + b"!", TEXT + bytes(100_000)])
async def test_an_encrypted_object_of_another_size_that_begins_alike_does_not_cost_the_plain_object(sealed):
    """It opens, all of it: but it is another object."""
    below = await both()
    await store_of(below).put(KEY, sealed)
    done = await seal_plain(below)
    assert (done.outcome, KEY in done.problem) == (FAILED, True)
    assert await below.read(KEY, 0, len(TEXT)) == TEXT


async def test_a_whole_encrypted_copy_is_all_that_is_left():
    below = await both()
    assert (await seal_plain(below)).outcome == SEALED
    assert [found.key async for page in below.list() for found in page] == [f"sealed/keys/{KEY}", SEALED_KEY]
    assert await store_of(below).read(KEY, 0, len(TEXT)) == TEXT
