"""A block in the making: records are copied in as they come, so that little is left to do once the device is free.

[ header, written last | record | record | ... | zeros ]
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from typing import TypeAlias

from tallybook.core.batch import Buffer

from .format import BLOCK_HEADER_BYTES, RECORD_HEADER_BYTES, add_to_crc

OnDurable = Callable[[], None]

Queued: TypeAlias = tuple[bytes, Buffer, int, OnDurable, float]
"""A record on its way to the disk: header, body, charge in bytes, whom to call, when it was appended.

A plain tuple, because one is made for every batch.
"""


class OpenBlock:
    """Fills ``buffer``, which it keeps for the next block and the one after.

    Attributes:
        end: bytes used so far, header included.
        body_crc: of all records so far.
        on_durable: whom to call, one for each record.
        charges: what each record may cost at worst, in bytes.
    """

    __slots__ = ("_ends", "_since", "body_crc", "buffer", "charges", "end", "on_durable")

    def __init__(self, buffer: memoryview) -> None:
        self.buffer = buffer
        self.clear()

    def clear(self) -> None:
        """Begin anew."""
        self.end = BLOCK_HEADER_BYTES
        self.body_crc = 0
        self.on_durable: list[OnDurable] = []
        self._ends: list[int] = []
        self.charges: list[int] = []
        self._since: list[float] = []

    def __len__(self) -> int:
        """Records so far."""
        return len(self.on_durable)

    @property
    def body_bytes(self) -> int:
        """Bytes of all records so far."""
        return self.end - BLOCK_HEADER_BYTES

    @property
    def since_seconds(self) -> float:
        """When the first record was appended."""
        return self._since[0]

    def fits(self, record: Queued) -> bool:
        """Whether there is room for one record more."""
        return self.end + RECORD_HEADER_BYTES + len(record[1]) <= len(self.buffer)

    def add(self, record: Queued) -> None:
        """Copy one record in; it has to fit."""
        header, body, charge, on_durable, since_seconds = record
        buffer, start = self.buffer, self.end
        body_start = start + RECORD_HEADER_BYTES
        end = body_start + len(body)
        buffer[start:body_start] = header
        buffer[body_start:end] = body
        self.body_crc = add_to_crc(self.body_crc, buffer[start:end])
        self.end = end
        self.on_durable.append(on_durable)
        self._ends.append(end)
        self.charges.append(charge)
        self._since.append(since_seconds)

    def move_rest(self, limit: int, rest: OpenBlock) -> None:
        """Keep the records that end within ``limit`` bytes, at least one; ``rest``, which is empty, gets the others."""
        keep = bisect_right(self._ends, limit)
        cut = self._ends[keep - 1]
        shift = cut - BLOCK_HEADER_BYTES
        rest.end = self.end - shift
        rest.buffer[BLOCK_HEADER_BYTES : rest.end] = self.buffer[cut : self.end]
        rest.on_durable, self.on_durable = self.on_durable[keep:], self.on_durable[:keep]
        rest.charges, self.charges = self.charges[keep:], self.charges[:keep]
        rest._since, self._since = self._since[keep:], self._since[:keep]
        rest._ends, self._ends = [end - shift for end in self._ends[keep:]], self._ends[:keep]
        self.end = cut
        for block in (self, rest):
            block.body_crc = add_to_crc(0, block.buffer[BLOCK_HEADER_BYTES : block.end])
