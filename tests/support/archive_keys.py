"""Archive keys in memory, which a test can change at any time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tallybook.runtime.security.archive_keys import KEY_BYTES, ArchiveKeys


class InMemoryKeys:
    """An ``ArchiveKeySource``. Keys are named k1, k2 and so on; their bytes repeat the number."""

    def __init__(self, number: int = 1, *, others: Mapping[str, bytes] | None = None) -> None:
        name = f"k{number}"
        self.keys = ArchiveKeys(name, {**(others or {}), name: bytes([number]) * KEY_BYTES})
        self.wanted: list[str] = []
        """Key names that were requested."""

    async def now(self, *, wanted: str = "") -> ArchiveKeys:
        """The present keys."""
        self.wanted.append(wanted)
        return self.keys

    def rotate(self, *, keep: bool = True) -> None:
        """Make the next key the current one; drop the others unless ``keep``."""
        number = int(self.keys.current[1:]) + 1
        after = InMemoryKeys(number, others=self.keys.keys if keep else None).keys
        self.keys = replace(after, reads_plain=self.keys.reads_plain)

    def refuse_plain(self) -> None:
        """Accept encrypted objects only."""
        self.keys = replace(self.keys, reads_plain=False)
