"""Which node is where. Pure functions of ids and paths.

    ROOT/format                     "1": version of this layout
    ROOT/cluster                    the cluster's uuid
    ROOT/ids                        all ledger ids ever handed out are below this decimal number
    ROOT/ledgers/AAAA/BBB/CCC/DDD   a *group* of 4096 ledgers; its data says which were deleted
    ROOT/ledgers/AAAA/BBB/CCC/DDD/EEE   one ledger; AAAABBBCCCDDDEEE is its id in hexadecimal
    ROOT/cookies/b-BOOKIE           the cookie of a bookie
    ROOT/bookies/b-BOOKIE           a live bookie (ephemeral)

A flat directory of ledgers would not do: ZooKeeper answers a listing in one message of at
most 1 MiB. No node above a ledger is ever removed, so a listing can walk them one by one.

The data of a group is a little-endian number whose bit ``i`` says that its ``i``-th ledger
was deleted. A ledger is created only together with a check of that number, and deleted only
together with a change of it, so an id is never used twice.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

from tallybook.core.errors import DamagedFile
from tallybook.core.ids import MAX_ID

FORMAT: Final = 1

GROUP_LEDGERS: Final = 4096
_LEVEL_BITS: Final = 12
_LEVELS: Final = 5

ids_below: Final = tuple(1 << _LEVEL_BITS * (_LEVELS - 1 - level) for level in range(_LEVELS))
"""How many ledger ids a node holds, by its level: 0 right below ``ledgers``, 4 for a ledger itself."""


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

    def ledger(self, ledger_id: int) -> str:
        """The node of a ledger."""
        return f"{self.group(ledger_id)}/{ledger_id % GROUP_LEDGERS:03x}"

    def group(self, ledger_id: int) -> str:
        """The node above a ledger's."""
        digits = f"{ledger_id:016x}"
        return f"{self.ledgers}/{digits[:4]}/{digits[4:7]}/{digits[7:10]}/{digits[10:13]}"

    def cookie(self, bookie_id: str) -> str:
        """The node of a bookie's cookie."""
        return f"{self.cookies}/{bookie_node(bookie_id)}"

    def bookie(self, bookie_id: str) -> str:
        """The node of a live bookie."""
        return f"{self.bookies}/{bookie_node(bookie_id)}"


def bookie_node(bookie_id: str) -> str:
    """A bookie id as a node name: a prefix and percent signs keep clear of what ZooKeeper forbids."""
    return f"b-{quote(bookie_id, safe='')}"


def with_parents(path: str) -> list[str]:
    """The nodes from the first below ``/`` to ``path`` itself."""
    parts = path.split("/")[1:]
    return ["/" + "/".join(parts[: count + 1]) for count in range(len(parts))]


def child_range(level: int, before: int, name: str, path: str) -> range:
    """The ledger ids under the node ``name`` at ``level``, whose parent's ids begin at ``before``.

    Raises:
        DamagedFile: ``name`` is not a node of this layout; ``path`` names the parent in the message.
    """
    try:
        first = before + int(name, 16) * ids_below[level]
    except ValueError:
        raise DamagedFile(f"zookeeper node {path}: {name!r} does not belong there") from None
    return range(first, min(first + ids_below[level], MAX_ID + 1))


def was_deleted(group_data: bytes, ledger_id: int) -> bool:
    """Whether the data of its group says that a ledger was deleted."""
    return bool(int.from_bytes(group_data, "little") >> ledger_id % GROUP_LEDGERS & 1)


def with_deleted(group_data: bytes, ledger_id: int) -> bytes:
    """The data of a group once a ledger is deleted."""
    bits = int.from_bytes(group_data, "little") | 1 << ledger_id % GROUP_LEDGERS
    return bits.to_bytes((bits.bit_length() + 7) // 8, "little")
