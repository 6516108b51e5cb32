"""A bookie knows its ledgers by more than their ids, also where the metadata are lost: on a simulated disk."""

from collections.abc import Awaitable, Callable

import pytest

from tallybook.bookie.ledger_state import LedgerRow, decode_row, encode_row
from tallybook.core.errors import DamagedFile, OtherLedger
from tallybook.core.ids import IDENTITY_BYTES, ledger_identity
from tallybook.core.keys import key_verifier
from tallybook.runtime.deterministic import SimDisk, World, run_seed
from tallybook.sim.stage.disk_bookie import ROOT, DiskBookie, KnownMetadata, batch_of, tiny_settings

OLD, NEW = ledger_identity("created before"), ledger_identity("created after the metadata were restored")
REFUSED = OtherLedger.wire_code
Scenario = Callable[[DiskBookie, World], Awaitable[None]]


def play(scenario: Scenario) -> None:
    async def run(world: World) -> None:
        metadata = KnownMetadata(identities={1: OLD})
        node = DiskBookie(SimDisk(world.rng), world.clock, metadata, tiny_settings())
        await node.boot()
        await scenario(node, world)
        await node.stop()
        assert node.failures == []

    run_seed(1, run, deadline_seconds=3600)


async def add(node: DiskBookie, batch: bytes, identity: bytes) -> int:
    return (await node.add(batch, identity=identity)).code


ENDS: dict[str, Callable[[DiskBookie], Awaitable[None]]] = {
    "in the journal": lambda node: node.kill(),
    "in the index": lambda node: node.stop(),
}


@pytest.mark.parametrize("kept", ENDS)
@pytest.mark.parametrize("met_by", ["an add", "a fence", "an explicit LAC"])
def test_after_a_restart_beside_restored_metadata_the_new_ledger_is_refused_and_the_old_one_served(
    kept: str, met_by: str
) -> None:
    async def scenario(node: DiskBookie, world: World) -> None:
        if met_by == "an add":
            assert await add(node, batch_of(0), OLD) == 0
        else:
            async with node.bookie.identified(1, OLD, for_write=True):
                if met_by == "a fence":
                    await node.bookie.fence(1, b"")
                else:
                    await node.bookie.write_lac(1, 0, b"")
        await ENDS[kept](node)
        node.metadata.identities[1] = NEW
        await node.boot()
        for recovery in (False, True):
            assert (await node.add(batch_of(1), recovery=recovery, identity=NEW)).code == REFUSED
        with pytest.raises(OtherLedger):
            async with node.bookie.identified(1, NEW):
                await node.bookie.read_lac(1)
        async with node.bookie.identified(1, OLD):
            assert (await node.bookie.read_lac(1)).fenced == (met_by == "a fence")

    play(scenario)


def test_a_ledger_that_an_earlier_version_met_is_taken_for_any() -> None:
    async def scenario(node: DiskBookie, world: World) -> None:
        node.metadata.identities.clear()
        assert await add(node, batch_of(0), b"") == 0
        await node.stop()
        node.metadata.identities[1] = NEW
        await node.boot()
        assert await add(node, batch_of(1), OLD) == 0
        assert await add(node, batch_of(2), NEW) == 0

    play(scenario)


@pytest.mark.parametrize("index", ["kept", "lost"])
def test_a_round_of_the_collector_gives_an_identity_to_a_ledger_that_is_held_without(index: str) -> None:
    async def scenario(node: DiskBookie, world: World) -> None:
        node.metadata.identities.clear()
        assert await add(node, batch_of(0), b"") == 0
        await node.stop()
        node.metadata.identities[1] = OLD
        if index == "lost":
            for name in await node.disk.list(f"{ROOT}/index"):
                await node.disk.unlink(f"{ROOT}/index/{name}")
        await node.boot()
        await node.bookie.collect()
        for _ in range(2):
            assert (await node.add(batch_of(1), recovery=True, identity=NEW)).code == REFUSED
        await node.stop()
        await node.boot()
        assert (await node.add(batch_of(1), recovery=True, identity=NEW)).code == REFUSED
        assert (await node.add(batch_of(1), recovery=True, identity=OLD)).code == 0

    play(scenario)


def test_metadata_of_another_key_give_no_identity() -> None:
    async def scenario(node: DiskBookie, world: World) -> None:
        node.metadata.identities.clear()
        assert await add(node, batch_of(0), b"") == 0
        await node.bookie.flush()
        node.metadata.identities[1] = NEW
        node.metadata.verifiers[1] = key_verifier(b"another password")
        await node.bookie.collect()
        assert await add(node, batch_of(1), OLD) == 0

    play(scenario)


def test_what_was_learned_and_never_kept_is_learned_anew_where_it_does_not_fit() -> None:
    async def scenario(node: DiskBookie, world: World) -> None:
        node.metadata.verifiers[1] = key_verifier(b"right")
        assert (await node.add(batch_of(0), b"wrong", identity=OLD)).code != 0
        node.metadata.identities[1] = NEW
        codes = [(await node.add(batch_of(0), b"right", identity=NEW)).code for _ in range(2)]
        assert codes == [REFUSED, 0]

    play(scenario)


def test_the_inventory_says_which_ledgers_are_held() -> None:
    async def scenario(node: DiskBookie, world: World) -> None:
        await add(node, batch_of(0), OLD)
        await add(node, batch_of(0, ledger_id=2), b"")
        found = (await node.bookie.held_ledgers(-1, 10)).ledgers
        assert [(each.ledger_id, each.identity) for each in found] == [(1, OLD), (2, b"")]

    play(scenario)


@pytest.mark.parametrize("verifier", [None, b"", key_verifier(b"k")])
def test_a_row_keeps_the_identity_and_one_of_an_earlier_version_has_none(verifier: bytes | None) -> None:
    row = LedgerRow(verifier, fenced=True, lac=5, last_held=9, identity=OLD)
    data = encode_row(7, row)
    assert (data[4], decode_row(7, data)) == (3, row)
    without = encode_row(7, LedgerRow(verifier, fenced=True, lac=5, last_held=9))
    assert (without[4], decode_row(7, without).identity) == (1, b"")
    assert len(data) == len(without) + IDENTITY_BYTES


def test_every_cut_and_every_flipped_bit_of_a_row_with_an_identity_is_noticed() -> None:
    data = encode_row(7, LedgerRow(key_verifier(b"k"), last_held=9, identity=OLD))
    for size in range(len(data)):
        with pytest.raises(DamagedFile):
            decode_row(7, data[:size])
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(DamagedFile):
            decode_row(7, bytes(flipped))


def test_an_identity_is_a_digest_of_the_token_of_the_creator() -> None:
    assert len(OLD) == IDENTITY_BYTES
    assert ledger_identity("created before") == OLD
    assert OLD != NEW
    assert ledger_identity("") == b""
