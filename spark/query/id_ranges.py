"""Sets of ids in text form, ``1,5-9``: values of an option, and ledgers that a streaming query has read."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Self

from tallybook.core.errors import InvalidArgument
from tallybook.core.ids import MAX_ID

_PART = re.compile(r"\s*([0-9]{1,19})\s*(?:-\s*([0-9]{1,19})\s*)?")


@dataclass(frozen=True, slots=True)
class IdRanges:
    """A set of ids as ascending ranges ``(first, last)`` that neither touch nor overlap."""

    ranges: tuple[tuple[int, int], ...] = ()

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse ``1,5-9``; an empty text is the empty set.

        Raises:
            InvalidArgument: the text has another form.
        """
        found = []
        for part in text.split(",") if text.strip() else ():
            match = _PART.fullmatch(part)
            if match is None:
                raise InvalidArgument(f"{part.strip()!r} is neither an id nor a range of ids such as 5-9")
            first = int(match[1])
            last = int(match[2]) if match[2] else first
            if not first <= last <= MAX_ID:
                raise InvalidArgument(f"{part.strip()!r} is not an ascending range of ids up to {MAX_ID}")
            found.append((first, last))
        return cls(_merged(found))

    @classmethod
    def of(cls, ids: Iterable[int]) -> Self:
        """The set of these ids."""
        return cls(_merged((each, each) for each in ids))

    def __contains__(self, wanted: object) -> bool:
        if not isinstance(wanted, int):
            return False
        at = bisect_right(self.ranges, wanted, key=lambda found: found[0]) - 1
        return at >= 0 and wanted <= self.ranges[at][1]

    def __iter__(self) -> Iterator[int]:
        for first, last in self.ranges:
            yield from range(first, last + 1)

    @property
    def count(self) -> int:
        """Number of ids; may be too large for ``len``."""
        return sum(last - first + 1 for first, last in self.ranges)

    def __or__(self, other: IdRanges) -> IdRanges:
        return IdRanges(_merged((*self.ranges, *other.ranges)))

    def __str__(self) -> str:
        return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in self.ranges)


NO_IDS: Final = IdRanges()


def _merged(ranges: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    found: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if found and first <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(found[-1][1], last))
        else:
            found.append((first, last))
    return tuple(found)
