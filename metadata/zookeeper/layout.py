"""Layout of the ZooKeeper nodes: pure functions of ids and paths.

docs/reference/formats/metadata.md lists all nodes and their data. A flat directory of ledgers does not work: ZooKeeper
answers a listing in one message of at most 1 MiB. So ledgers are the leaves of a tree; a *group* of 4096 ledgers has
one parent node, whose data say which of them were deleted. A ledger's creation checks these data in the same
transaction, and its deletion changes them, so an id is never reused. Nodes above a ledger are never removed, so a
listing can walk them one by one.

All segments of a record's name but the last are *folders*, which are never removed. The prefixes distinguish a record
from a folder of the same name, and both from names that ZooKeeper reserves.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import quote, unquote

from tallybook.core.errors import DamagedFile
from tallybook.core.ids import DELETED_IDENTITY_BYTES, NO_IDENTITY

from ..store import Deletion

FORMAT: Final = 1

GROUP_LEDGERS: Final = 4096
NOT_KNOWN: Final = Deletion(NO_IDENTITY)
"""The record of the deletion of a ledger with unknown identity."""
_BITS_BYTES: Final = GROUP_LEDGERS // 8
_LEVEL_BITS: Final = 12
_LEVELS: Final = 5

_FIRST_DIGITS: Final = re.compile("[0-7][0-9a-f]{3}")
_DIGITS: Final = re.compile("[0-9a-f]{3}")
_NUMBER: Final = re.compile(rb"[0-9]{1,19}")

_RECORD: Final = "r-"
_FOLDER: Final = "f-"

ids_below: Final = tuple(1 << _LEVEL_BITS * (_LEVELS - 1 - level) for level in range(_LEVELS))
"""Ledger ids per node, by level: 0 is directly below ``ledgers``, 4 is a ledger itself."""


class Layout:
    """Paths below one root, such as ``/tallybook``."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.format = f"{root}/format"
        self.cluster = f"{root}/cluster"
        self.ids = f"{root}/ids"
        self.ledgers = f"{root}/ledgers"
        self.cookies = f"{root}/cookies"
        self.bookies = f"{root}/bookies"
        self.records = f"{root}/records"

    def ledger(self, ledger_id: int) -> str:
        """The node of a ledger."""
        return f"{self.group(ledger_id)}/{ledger_id % GROUP_LEDGERS:03x}"

    def group(self, ledger_id: int) -> str:
        """The parent node of a ledger's."""
        digits = f"{ledger_id:016x}"
        return f"{self.ledgers}/{digits[:4]}/{digits[4:7]}/{digits[7:10]}/{digits[10:13]}"

    def cookie(self, bookie_id: str) -> str:
        """The node of a bookie's cookie."""
        return f"{self.cookies}/{bookie_node(bookie_id)}"

    def bookie(self, bookie_id: str) -> str:
        """The node of a live bookie."""
        return f"{self.bookies}/{bookie_node(bookie_id)}"

    def record(self, name: str) -> str:
        """The node of a record."""
        folder, _, last = name.rpartition("/")
        return f"{self.record_folder(folder)}/{_RECORD}{_escaped(last)}"

    def record_folder(self, folder: str) -> str:
        """The parent node of all records ``FOLDER/...``; the empty folder is the parent of all."""
        return "/".join([self.records, *(_FOLDER + _escaped(segment) for segment in folder.split("/") if segment)])


def record_entries(names: list[str], folder: str, path: str) -> list[str]:
    """Names of the children of a folder: records, and folders with a slash, ordered by code points.

    All records in a folder sort at the place of its name with the slash.

    Raises:
        DamagedFile: a node is not one of this layout; ``path`` names the parent in the message.
    """
    return sorted(_record_entry(name, f"{folder}/" if folder else "", path) for name in names)


def _record_entry(node: str, before: str, path: str) -> str:
    segment = unquote(node[2:])
    if segment and "/" not in segment:
        if node == _RECORD + _escaped(segment):
            return before + segment
        if node == _FOLDER + _escaped(segment):
            return f"{before}{segment}/"
    raise DamagedFile(f"zookeeper node {path}: {node!r} does not belong there")


def _escaped(segment: str) -> str:
    return quote(segment, safe="")


def bookie_node(bookie_id: str) -> str:
    """A bookie id as a node name: a prefix and percent encoding avoid names that ZooKeeper forbids."""
    return f"b-{_escaped(bookie_id)}"


def with_parents(path: str) -> list[str]:
    """The nodes from the first below ``/`` to ``path`` itself."""
    parts = path.split("/")[1:]
    return ["/" + "/".join(parts[: count + 1]) for count in range(len(parts))]


def child_range(level: int, before: int, name: str, path: str) -> range:
    """The ledger ids below the node ``name`` at ``level``, whose parent's ids begin at ``before``.

    Raises:
        DamagedFile: ``name`` is not a node of this layout; ``path`` names the parent in the message.
    """
    digits = _FIRST_DIGITS if level == 0 else _DIGITS
    if digits.fullmatch(name) is None:
        raise DamagedFile(f"zookeeper node {path}: {name!r} does not belong there")
    first = before + int(name, 16) * ids_below[level]
    return range(first, first + ids_below[level])


def number_of(data: bytes) -> int | None:
    """The decimal number in a node's data, ``None`` if it is something else."""
    return int(data) if _NUMBER.fullmatch(data) else None


def deletion(group_data: bytes, ledger_id: int) -> Deletion | None:
    """The record of the deletion of a ledger in the data of its group, if it was deleted."""
    at = ledger_id % GROUP_LEDGERS
    if not int.from_bytes(group_data[:_BITS_BYTES], "little") >> at & 1:
        return None
    digest = group_data[_digest_at(at) : _digest_at(at + 1)]
    return Deletion.of(digest.ljust(DELETED_IDENTITY_BYTES, b"\0"))


def with_deleted(group_data: bytes, ledger_id: int, record: Deletion = NOT_KNOWN) -> bytes:
    """The data of a group after a ledger is deleted."""
    at = ledger_id % GROUP_LEDGERS
    data = bytearray(group_data.ljust(_digest_at(at + 1), b"\0"))
    data[at // 8] |= 1 << at % 8
    if record.digest:
        data[_digest_at(at) : _digest_at(at + 1)] = record.digest
    return bytes(data).rstrip(b"\0")


def _digest_at(at: int) -> int:
    return _BITS_BYTES + DELETED_IDENTITY_BYTES * at
