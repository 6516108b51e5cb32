"""Contract of metadata clients with read-only access, for all drivers."""

import inspect

import pytest

from tallybook.core.answers import Incarnation
from tallybook.core.errors import AccessDenied
from tallybook.core.quorum import Quorum
from tallybook.metadata.ledger.model import Fragment, LedgerMetadata
from tallybook.metadata.store import BookieInfo, Membership, MetadataStore

LEDGER = LedgerMetadata(7, Quorum(1, 1, 1), (Fragment(0, ("b1",)),), "creator", 0)
BOOKIE = BookieInfo("b1", "127.0.0.1:7400", Incarnation("uuid", 1))

CHANGES = {
    "next_ledger_id": (),
    "raise_id_counter": (5000,),
    "create_ledger": (LEDGER,),
    "update_ledger": (LEDGER, 1),
    "delete_ledger": (7, 1),
    "write_cookie": ("b1", b"cookie"),
    "delete_cookie": ("b1",),
    "write_record": ("name", b"value", None),
    "delete_record": ("name", 1),
}
READS = {
    "cluster_id", "id_counter", "deletion", "read_ledger", "list_ledgers", "watch_ledger", "read_cookie",
    "read_record", "list_records", "close",
}  # fmt: skip


def test_every_operation_of_the_ports_is_known_as_a_read_or_a_change():
    def operations(port: type) -> set[str]:
        return {name for name, value in vars(port).items() if inspect.isfunction(value) and not name.startswith("_")}

    assert operations(MetadataStore) == READS | set(CHANGES)
    assert operations(Membership) == {"bookies", "watch", "register"}


async def test_a_reader_sees_what_others_have_written(world):
    async with world() as store:
        writer = await store.client()
        cluster_id = await writer.store.cluster_id()
        created = await writer.store.create_ledger(LEDGER)
        await writer.store.write_record("name", b"value", None)
        await writer.store.write_cookie("b1", b"cookie")
        await writer.membership.register(BOOKIE)
        reader = await store.reader()
        assert await reader.store.cluster_id() == cluster_id
        assert await reader.store.read_ledger(7, linearizable=True) == created
        assert (await reader.store.list_ledgers()).ledger_ids == (7,)
        record = await reader.store.read_record("name", linearizable=True)
        assert record is not None
        assert record.value == b"value"
        assert (await reader.store.list_records()).names == ("name",)
        assert await reader.store.read_cookie("b1") == b"cookie"
        assert await reader.store.id_counter() >= 0
        assert await reader.membership.bookies() == {"b1": BOOKIE}


async def test_a_reader_is_woken_by_what_others_write(world):
    async with world() as store:
        writer = await store.client()
        created = await writer.store.create_ledger(LEDGER)
        reader = await store.reader()
        watch, members = reader.store.watch_ledger(7), reader.membership.watch()
        await writer.store.delete_ledger(7, created.version)
        await writer.membership.register(BOOKIE)
        await watch.changed()
        await members.changed()
        await watch.close()
        await members.close()


@pytest.mark.parametrize("change", [*CHANGES, "register"])
async def test_a_reader_changes_nothing(world, change):
    async with world() as store:
        writer = await store.client()
        await writer.store.cluster_id()
        created = await writer.store.create_ledger(LEDGER)
        counter = await writer.store.id_counter()
        await writer.store.write_cookie("b1", b"first cookie")
        await writer.store.write_record("name", b"first", None)
        reader = await store.reader()
        attempt = reader.membership.register if change == "register" else getattr(reader.store, change)
        with pytest.raises(AccessDenied, match=r"the reader may only read: .*nothing was changed"):
            await attempt(*CHANGES.get(change, (BOOKIE,)))
        assert await writer.store.read_ledger(7, linearizable=True) == created
        assert await writer.store.id_counter() == counter
        assert await writer.store.read_cookie("b1") == b"first cookie"
        record = await writer.store.read_record("name", linearizable=True)
        assert record is not None
        assert record.value == b"first"
        assert await writer.membership.bookies() == {}
