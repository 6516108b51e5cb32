"""Start positions of readers."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum

from tallybook.core.errors import InvalidArgument

from .position import Position


class StartKind(Enum):
    """The kinds of start positions."""

    EARLIEST = "earliest"
    LATEST = "latest"
    AT = "at"
    AFTER = "after"
    TIMESTAMP = "timestamp"
    SEQUENCE = "sequence"
    TXID = "txid"


@dataclass(frozen=True, slots=True)
class Start:
    """Where a reader starts. Create it with one of the class methods."""

    kind: StartKind
    number: int = 0
    position: Position | None = None

    @classmethod
    def earliest(cls) -> Start:
        """Start with the first existing record."""
        return cls(StartKind.EARLIEST)

    @classmethod
    def latest(cls) -> Start:
        """Start after the last record that is confirmed when the reader starts."""
        return cls(StartKind.LATEST)

    @classmethod
    def at(cls, position: Position | str) -> Start:
        """Start with the record at a position, given as ``Position`` or as text."""
        return cls(StartKind.AT, position=_position(position))

    @classmethod
    def after(cls, position: Position | str) -> Start:
        """Start with the record after a position, such as the stored position of the last processed record."""
        return cls(StartKind.AFTER, position=_position(position))

    @classmethod
    def timestamp(cls, when: str | int | datetime) -> Start:
        """Start with the first record whose timestamp is not before a time.

        Args:
            when: milliseconds since the epoch, an ISO 8601 text such as ``2026-11-01T00:00:00Z``, or a datetime;
                without a time zone: UTC.

        Raises:
            InvalidArgument: not a valid time.
        """
        if isinstance(when, int):
            return cls(StartKind.TIMESTAMP, when)
        try:
            moment = datetime.fromisoformat(when) if isinstance(when, str) else when
            moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
            return cls(StartKind.TIMESTAMP, round(moment.timestamp() * 1000))
        except (ValueError, AttributeError, OverflowError) as error:
            raise InvalidArgument(f"must be a time such as 2026-11-01T00:00:00Z, got {when!r}") from error

    @classmethod
    def sequence(cls, number: int) -> Start:
        """Start with the record with this number, counted from 0."""
        if number < 0:
            raise InvalidArgument(f"records are numbered from 0, got {number!r}")
        return cls(StartKind.SEQUENCE, number)

    @classmethod
    def txid(cls, number: int) -> Start:
        """Start with the first record whose transaction id is not below ``number``."""
        return cls(StartKind.TXID, number)


def _position(position: Position | str) -> Position:
    return position if isinstance(position, Position) else Position.parse(position)
