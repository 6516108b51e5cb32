"""A plain object beside a sealed copy that is not all of it: it may be the last good one, and stays."""

import pytest

from tallybook.archive.objects.memory import MemoryStore
from tallybook.archive.objects.seal_format import SEALED_FRAME_BYTES, TAG_BYTES
from tallybook.archive.objects.sealed import SealedStore
from tallybook.archive.schema import object_key
from tallybook.offload.rekey import FAILED, SEALED, Rekeyed, rekey
from tallybook.runtime.clock import RealClock
from tallybook.runtime.tasks import InlineWorkers
from tallybook.sim.stage.held_keys import HeldKeys

KEY = object_key("00000000-0000-4000-8000-000000000001", [1])
SEALED_KEY = f"sealed/objects/{KEY}"
TEXT = bytes(range(256)) * 1200
"""Five frames."""


def store_of(below: MemoryStore) -> SealedStore:
    return SealedStore(below, InlineWorkers(), HeldKeys(1))


async def seal_plain(below: MemoryStore) -> Rekeyed:
    [done] = [each async for each in rekey(store_of(below), "k1", change=True, seal_plain=True, copy_key=bytes(32))]
    return done


async def both() -> MemoryStore:
    """As a run leaves it that was stopped just before it removed the plain object."""
    below = MemoryStore(RealClock())
    await store_of(below).put(KEY, TEXT)
    await below.put(KEY, TEXT)
    return below


@pytest.mark.parametrize(
    "stored_bytes",
    [
        pytest.param(0, id="nothing"),
        pytest.param(TAG_BYTES, id="as much as an empty object has"),
        pytest.param(2 * SEALED_FRAME_BYTES, id="two frames of five"),
        pytest.param(-1, id="all but a byte"),
    ],
)
async def test_a_sealed_copy_that_was_cut_off_does_not_cost_the_plain_object(stored_bytes):
    below = await both()
    whole = await below.read(SEALED_KEY, 0, (await below.info(SEALED_KEY)).size_bytes)
    await below.put(SEALED_KEY, whole[:stored_bytes])
    done = await seal_plain(below)
    assert (done.outcome, KEY in done.problem) == (FAILED, True)
    assert await below.read(KEY, 0, len(TEXT)) == TEXT


@pytest.mark.parametrize("more", [1, TAG_BYTES + 1, 2 * SEALED_FRAME_BYTES])
async def test_a_sealed_copy_with_something_behind_it_does_not_cost_the_plain_object(more):
    below = await both()
    whole = await below.read(SEALED_KEY, 0, (await below.info(SEALED_KEY)).size_bytes)
    await below.put(SEALED_KEY, whole + bytes(more))
    done = await seal_plain(below)
    assert (done.outcome, KEY in done.problem) == (FAILED, True)
    assert await below.read(KEY, 0, len(TEXT)) == TEXT


@pytest.mark.parametrize("sealed", [TEXT[:100_000], TEXT[:1], b"", TEXT + b"!", TEXT + bytes(100_000)])
async def test_a_sealed_object_of_another_size_that_begins_alike_does_not_cost_the_plain_object(sealed):
    """It opens, all of it: but it is another object."""
    below = await both()
    await store_of(below).put(KEY, sealed)
    done = await seal_plain(below)
    assert (done.outcome, KEY in done.problem) == (FAILED, True)
    assert await below.read(KEY, 0, len(TEXT)) == TEXT


async def test_a_whole_sealed_copy_is_all_that_is_left():
    below = await both()
    assert (await seal_plain(below)).outcome == SEALED
    assert [found.key async for page in below.list() for found in page] == [f"sealed/keys/{KEY}", SEALED_KEY]
    assert await store_of(below).read(KEY, 0, len(TEXT)) == TEXT
