"""A block in the making: records are copied in as they come, so that little is left to do once the device is free.

[ header, written last | record | record | ... | zeros ]
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from operator import attrgetter
from typing import Final, NamedTuple, TypeAlias

from tallybook.core.batch import Buffer

from .format import BLOCK_HEADER_BYTES, RECORD_HEADER_BYTES, add_to_crc

OnDurable = Callable[[], None]

Queued: TypeAlias = tuple[bytes, Buffer, int, OnDurable, float]
"""A record on its way to the disk: header, body, charge in bytes, whom to call, when it was appended.

A plain tuple, because one is made for every batch.
"""


_END: Final = attrgetter("end")


class _Held(NamedTuple):
    """A record of the block."""

    end: int
    charge_bytes: int
    on_durable: OnDurable
    since_seconds: float


class OpenBlock:
    """Fills ``buffer``, which it keeps for the next block and the one after.

    Attributes:
        end: bytes used so far, header included.
        body_crc: of all records so far.
    """

    __slots__ = ("_records", "body_crc", "buffer", "end")

    def __init__(self, buffer: memoryview) -> None:
        self.buffer = buffer
        self.clear()

    def clear(self) -> None:
        """Begin anew."""
        self.end = BLOCK_HEADER_BYTES
        self.body_crc = 0
        self._records: list[_Held] = []

    def __len__(self) -> int:
        """Records so far."""
        return len(self._records)

    @property
    def body_bytes(self) -> int:
        """Bytes of all records so far."""
        return self.end - BLOCK_HEADER_BYTES

    @property
    def charge_bytes(self) -> int:
        """What the records may cost at worst."""
        return sum(record.charge_bytes for record in self._records)

    @property
    def first_charge_bytes(self) -> int:
        """What the first record may cost at worst."""
        return self._records[0].charge_bytes

    @property
    def since_seconds(self) -> float:
        """When the first record was appended."""
        return self._records[0].since_seconds

    @property
    def on_durable(self) -> list[OnDurable]:
        """Whom to call, one for each record."""
        return [record.on_durable for record in self._records]

    def fits(self, record: Queued) -> bool:
        """Whether there is room for one record more."""
        return self.end + RECORD_HEADER_BYTES + len(record[1]) <= len(self.buffer)

    def add(self, record: Queued) -> None:
        """Copy one record in; it has to fit. If that fails, the block is as it was."""
        header, body, charge_bytes, on_durable, since_seconds = record
        buffer, start = self.buffer, self.end
        body_start = start + RECORD_HEADER_BYTES
        end = body_start + len(body)
        buffer[start:body_start] = header
        buffer[body_start:end] = body
        body_crc = add_to_crc(self.body_crc, buffer[start:end])
        self._records.append(_Held(end, charge_bytes, on_durable, since_seconds))
        self.body_crc, self.end = body_crc, end

    def move_rest(self, limit: int, rest: OpenBlock) -> None:
        """Keep the records that end within ``limit`` bytes, at least one; ``rest``, which is empty, gets the others."""
        keep = bisect_right(self._records, limit, key=_END)
        cut = self._records[keep - 1].end
        shift = cut - BLOCK_HEADER_BYTES
        rest.end = self.end - shift
        rest.buffer[BLOCK_HEADER_BYTES : rest.end] = self.buffer[cut : self.end]
        rest._records = [record._replace(end=record.end - shift) for record in self._records[keep:]]
        self._records = self._records[:keep]
        self.end = cut
        for block in (self, rest):
            block.body_crc = add_to_crc(0, block.buffer[BLOCK_HEADER_BYTES : block.end])
