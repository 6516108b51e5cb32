"""Ledger identities in a bookie, also where the metadata are lost: on a simulated disk."""

from collections.abc import Awaitable, Callable

import pytest

from tallybook.bookie.ledgers.state import LedgerRow, decode_row, encode_row
from tallybook.core.add_kind import AddKind
from tallybook.core.errors import OtherLedger
from tallybook.core.ids import IDENTITY_BYTES, ledger_identity
from tallybook.core.keys import key_verifier
from tallybook.sim.stage.disk_bookie import ROOT, DiskBookie, KnownMetadata, batch_of

from .bookie_parts import on_a_bookie

OLD, NEW = ledger_identity("created before"), ledger_identity("created after the metadata were restored")
REFUSED = OtherLedger.wire_code


def identified() -> KnownMetadata:
    return KnownMetadata(identities={1: OLD})


async def add(node: DiskBookie, batch: bytes, identity: bytes) -> int:
    return (await node.add(batch, identity=identity)).code


ENDS: dict[str, Callable[[DiskBookie], Awaitable[None]]] = {
    "in the journal": lambda node: node.kill(),
    "in the index": lambda node: node.stop(),
}


@pytest.mark.parametrize("kept", ENDS)
@pytest.mark.parametrize("met_by", ["an add", "a fence", "an explicit LAC"])
@on_a_bookie(metadata=identified)
async def test_after_a_restart_beside_restored_metadata_the_new_ledger_is_refused_and_the_old_one_served(
    node, *, kept, met_by
):
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
        assert (
            await node.add(batch_of(1), kind=AddKind.RECOVERY if recovery else AddKind.ORDINARY, identity=NEW)
        ).code == REFUSED
    with pytest.raises(OtherLedger):
        async with node.bookie.identified(1, NEW):
            await node.bookie.read_lac(1)
    async with node.bookie.identified(1, OLD):
        assert (await node.bookie.read_lac(1)).fenced == (met_by == "a fence")


@on_a_bookie(metadata=identified)
async def test_a_ledger_that_an_earlier_version_met_is_taken_for_any(node):
    node.metadata.identities.clear()
    assert await add(node, batch_of(0), b"") == 0
    await node.stop()
    node.metadata.identities[1] = NEW
    await node.boot()
    assert await add(node, batch_of(1), OLD) == 0
    assert await add(node, batch_of(2), NEW) == 0


@pytest.mark.parametrize("index", ["kept", "lost"])
@on_a_bookie(metadata=identified)
async def test_a_pass_of_garbage_collection_gives_an_identity_to_a_ledger_that_is_held_without(node, *, index):
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
        assert (await node.add(batch_of(1), kind=AddKind.RECOVERY, identity=NEW)).code == REFUSED
    await node.stop()
    await node.boot()
    assert (await node.add(batch_of(1), kind=AddKind.RECOVERY, identity=NEW)).code == REFUSED
    assert (await node.add(batch_of(1), kind=AddKind.RECOVERY, identity=OLD)).code == 0


@on_a_bookie(metadata=identified)
async def test_metadata_of_another_key_give_no_identity(node):
    node.metadata.identities.clear()
    assert await add(node, batch_of(0), b"") == 0
    await node.bookie.flush()
    node.metadata.identities[1] = NEW
    node.metadata.verifiers[1] = key_verifier(b"another password")
    await node.bookie.collect()
    assert await add(node, batch_of(1), OLD) == 0


@on_a_bookie(metadata=identified)
async def test_what_was_learned_and_never_kept_is_learned_anew_where_it_does_not_fit(node):
    node.metadata.verifiers[1] = key_verifier(b"right")
    assert (await node.add(batch_of(0), b"wrong", identity=OLD)).code != 0
    node.metadata.identities[1] = NEW
    codes = [(await node.add(batch_of(0), b"right", identity=NEW)).code for _ in range(2)]
    assert codes == [REFUSED, 0]


@on_a_bookie(metadata=identified)
async def test_the_inventory_says_which_ledgers_are_held(node):
    await add(node, batch_of(0), OLD)
    await add(node, batch_of(0, ledger_id=2), b"")
    found = (await node.bookie.held_ledgers(-1, 10)).ledgers
    assert [(each.ledger_id, each.identity) for each in found] == [(1, OLD), (2, b"")]


@pytest.mark.parametrize("verifier", [None, b"", key_verifier(b"k")])
def test_a_row_keeps_the_identity_and_one_of_an_earlier_version_has_none(verifier: bytes | None) -> None:
    row = LedgerRow(verifier, fenced=True, lac=5, last_held=9, identity=OLD)
    data = encode_row(7, row)
    assert (data[4], decode_row(7, data)) == (3, row)
    without = encode_row(7, LedgerRow(verifier, fenced=True, lac=5, last_held=9))
    assert (without[4], decode_row(7, without).identity) == (1, b"")
    assert len(data) == len(without) + IDENTITY_BYTES
