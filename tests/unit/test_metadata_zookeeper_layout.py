"""The layout of ZooKeeper nodes: every id has its own node, and their order is that of the listing."""

from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallybook.core.errors import DamagedFile
from tallybook.core.ids import MAX_ID
from tallybook.metadata.store import Deletion
from tallybook.metadata.zookeeper.layout import (
    GROUP_LEDGERS,
    Layout,
    bookie_node,
    child_range,
    deletion,
    record_entries,
    with_deleted,
    with_parents,
)

LAYOUT = Layout("/tallybook")
ids = st.integers(0, MAX_ID) | st.sampled_from([2**n + d for n in (12, 24, 36, 48, 60) for d in (-1, 0, 1)])


@pytest.mark.parametrize(
    ("ledger_id", "path"),
    [
        (0, "/tallybook/ledgers/0000/000/000/000/000"),
        (4095, "/tallybook/ledgers/0000/000/000/000/fff"),
        (4096, "/tallybook/ledgers/0000/000/000/001/000"),
        (0x0123_456_789_ABC_DEF, "/tallybook/ledgers/0123/456/789/abc/def"),
        (MAX_ID, "/tallybook/ledgers/7fff/fff/fff/fff/fff"),
    ],
)
def test_the_path_of_a_ledger_is_its_id_in_hexadecimal(ledger_id, path):
    assert LAYOUT.ledger(ledger_id) == path
    assert path.startswith(LAYOUT.group(ledger_id) + "/")


@given(ids, ids)
def test_paths_sort_as_their_ids_do(one, other):
    assert (LAYOUT.ledger(one) < LAYOUT.ledger(other)) == (one < other)


@given(ids)
def test_walking_down_the_path_ends_at_the_id(ledger_id):
    before = 0
    for level, name in enumerate(LAYOUT.ledger(ledger_id).removeprefix("/tallybook/ledgers/").split("/")):
        found = child_range(level, before, name, "/x")
        assert ledger_id in found
        before = found[0]
    assert list(found) == [ledger_id]


def test_a_node_that_does_not_belong_is_reported_with_its_place():
    with pytest.raises(DamagedFile, match="node /tallybook/ledgers: 'lost\\+found' does not belong there"):
        child_range(0, 0, "lost+found", "/tallybook/ledgers")


@given(
    st.dictionaries(
        st.integers(0, 3 * GROUP_LEDGERS),
        st.sampled_from([b"", bytes(16), b"identity of one.", b"x" * 16]),
        max_size=20,
    ),
    st.integers(0, 3 * GROUP_LEDGERS),
)
def test_a_group_remembers_exactly_its_deleted_ledgers(deleted, probed):
    group = probed // GROUP_LEDGERS
    data = b""
    for ledger_id, identity in deleted.items():
        if ledger_id // GROUP_LEDGERS == group:
            data = with_deleted(data, ledger_id, Deletion.of(identity))
    assert deletion(data, probed) == (Deletion.of(deleted[probed]) if probed in deleted else None)
    assert len(data) <= GROUP_LEDGERS // 8 + 4 * GROUP_LEDGERS


@given(st.sets(st.integers(0, GROUP_LEDGERS - 1), max_size=20), st.integers(0, GROUP_LEDGERS - 1))
def test_an_earlier_version_and_this_one_understand_each_others_deletions(deleted, at):
    """An earlier version takes the whole data for one number."""
    data = b""
    for ledger_id in deleted:
        data = with_deleted(data, ledger_id, Deletion.of(b"%016d" % ledger_id))
    bits = int.from_bytes(data, "little")
    assert [bool(bits >> each & 1) for each in range(GROUP_LEDGERS)] == [
        each in deleted for each in range(GROUP_LEDGERS)
    ]
    bits |= 1 << at
    data = bits.to_bytes((bits.bit_length() + 7) // 8, "little")
    for ledger_id in {*deleted, at}:
        known = b"%016d" % ledger_id if ledger_id in deleted else b""
        assert deletion(data, ledger_id) == Deletion.of(known)


@given(st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=30))
def test_any_bookie_id_has_a_node_name_that_zookeeper_takes(bookie_id):
    node = bookie_node(bookie_id)
    assert unquote(node) == f"b-{bookie_id}"
    assert node.isascii()
    assert "/" not in node
    assert node not in (".", "..", "zookeeper")


names = st.lists(
    st.text(st.characters(exclude_characters="/", exclude_categories=["Cs"]), min_size=1, max_size=6), min_size=1
)


@given(names.map("/".join))
def test_walking_down_to_a_record_gives_its_name(name):
    path, folder = LAYOUT.records, ""
    *folders, last = LAYOUT.record(name).removeprefix(LAYOUT.records + "/").split("/")
    for node in folders:
        [entry] = record_entries([node], folder, path)
        folder, path = entry.removesuffix("/"), f"{path}/{node}"
        assert path == LAYOUT.record_folder(folder)
        assert node.isascii()
    assert record_entries([last], folder, path) == [name]


def test_a_record_and_a_folder_of_one_name_have_nodes_of_their_own_and_come_in_order():
    assert LAYOUT.record("a/b") == "/tallybook/records/f-a/r-b"
    assert LAYOUT.record_folder("a/b") == "/tallybook/records/f-a/f-b"
    assert record_entries(["f-b", "r-b", "r-b-c", "r-b0"], "a", "/x") == ["a/b", "a/b-c", "a/b/", "a/b0"]


@pytest.mark.parametrize("node", ["lost+found", "r", "x-a", "r-a b", "r-%61", "r-%ff"])
def test_a_node_that_is_no_record_is_reported_with_its_place(node):
    with pytest.raises(DamagedFile, match=r"node /x: .* does not belong there"):
        record_entries(["r-a", node], "", "/x")


def test_parents_are_named_from_the_top():
    assert with_parents("/a/bc/d") == ["/a", "/a/bc", "/a/bc/d"]
