"""Keys of a sealed archive that lie in no file: what holds them may change them at any time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tallybook.runtime.security.archive_keys import KEY_BYTES, ArchiveKeys


class HeldKeys:
    """An ``ArchiveKeySource``. Keys are named k1, k2 and so on, and made of nothing but their number."""

    def __init__(self, number: int = 1, *, others: Mapping[str, bytes] | None = None) -> None:
        name = f"k{number}"
        self.keys = ArchiveKeys(name, {**(others or {}), name: bytes([number]) * KEY_BYTES})
        self.wanted: list[str] = []
        """What was looked for."""

    async def now(self, *, wanted: str = "") -> ArchiveKeys:
        """What is held."""
        self.wanted.append(wanted)
        return self.keys

    def rotate(self, *, keep: bool = True) -> None:
        """Make the next key the current one; the others go, unless they are to be kept."""
        number = int(self.keys.current[1:]) + 1
        after = HeldKeys(number, others=self.keys.keys if keep else None).keys
        self.keys = replace(after, reads_plain=self.keys.reads_plain)

    def refuse_plain(self) -> None:
        """Believe sealed objects only."""
        self.keys = replace(self.keys, reads_plain=False)
