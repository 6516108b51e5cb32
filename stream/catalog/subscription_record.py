"""The metadata record of a subscription: its cursor and its reader. Pure.

The cursor is kept in a ledger, the *cursor ledger*, of which only the last entry counts. So an advance is one append,
and no metadata write. The record has the id of that ledger, and the cursor when the ledger was created.

The cursor ledger is created with the first advance. It is given up whenever the record is written anyway: when the
reader leaves, when another one takes over, and after some thousands of advances. So it stays small, and a subscription
without a reader has no ledger.

A new reader first fences the cursor ledger, so that the previous one cannot advance any more, and its cursor is final.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Final

from tallybook.core.errors import DamagedFile, InvalidArgument, StreamFenced, TallybookError
from tallybook.metadata.records.format import json_text, load_json, reporting_damage

from ..position import Position
from ..start import Start
from .head import Owner

FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class Cursor:
    """The cursor of a subscription.

    Args:
        position: position of a record.
        after: whether that record was acknowledged; otherwise it is the next one.
    """

    position: Position
    after: bool

    @property
    def start(self) -> Start:
        """The start of a reader at this cursor."""
        return Start.after(self.position) if self.after else Start.at(self.position)

    @property
    def order(self) -> tuple[tuple[int, int, int], bool]:
        """Sort key for cursors of one stream."""
        return self.position.place, self.after

    def __str__(self) -> str:
        return f"{'after' if self.after else 'at'} {self.position}"

    @classmethod
    def parse(cls, text: str) -> Cursor:
        """Parse the text form of a cursor.

        Raises:
            InvalidArgument: ``text`` is not a cursor.
        """
        word, _, position = text.partition(" ")
        if word not in {"at", "after"}:
            raise InvalidArgument(f"a cursor is 'at' or 'after' a position, got {text!r}")
        return cls(Position.parse(position), word == "after")


@dataclass(frozen=True, slots=True)
class Subscription:
    """The metadata record of a subscription.

    Args:
        cursor: the cursor when its cursor ledger was created, or given up.
        ledger_id: id of the cursor ledger; ``None``: none.
        making: id of a cursor ledger that is being created; it may not exist yet.
        doomed: former cursor ledgers that are being deleted.
    """

    stream_id: str
    name: str
    cursor: Cursor
    created_at_ms: int
    owner: Owner | None = None
    ledger_id: int | None = None
    making: int | None = None
    doomed: tuple[int, ...] = ()


def take(found: Subscription, owner: Owner, in_place_of: Owner | None) -> Subscription:
    """Replace the known reader; no change if the reader has changed."""
    return replace(found, owner=owner) if found.owner == in_place_of else found


def leave(found: Subscription, owner: Owner) -> Subscription:
    """Release the subscription; its cursor is in its ledger. No change if the reader has changed."""
    return replace(found, owner=None) if found.owner == owner else found


def announce(found: Subscription, owner: Owner, ledger_id: int) -> Subscription:
    """Announce a cursor ledger that will be created.

    Raises:
        StreamFenced: another reader has the subscription.
    """
    _owned(found, owner)
    if ledger_id in {found.making, found.ledger_id}:
        return found
    return replace(found, making=ledger_id, doomed=_with(found.doomed, found.making))


def begin(found: Subscription, owner: Owner, ledger_id: int) -> Subscription:
    """Use the announced ledger as the cursor ledger.

    Raises:
        As ``announce``.
    """
    _owned(found, owner)
    if found.ledger_id == ledger_id:
        return found
    return replace(found, ledger_id=ledger_id, making=None, doomed=_with(found.doomed, found.ledger_id))


def rest(found: Subscription, owner: Owner, cursor: Cursor, *, leave: bool = False) -> Subscription:
    """Store the cursor in the record, and give up the cursor ledger.

    Args:
        leave: also release the subscription.

    Raises:
        As ``announce``.
    """
    if leave and found.owner is None and found.ledger_id is None and found.cursor == cursor:
        return found
    _owned(found, owner)
    doomed = _with(_with(found.doomed, found.ledger_id), found.making)
    return replace(found, cursor=cursor, owner=None if leave else owner, ledger_id=None, making=None, doomed=doomed)


def retire(found: Subscription) -> Subscription:
    """Begin the deletion: remove the reader, and doom all ledgers."""
    return replace(found, owner=None, ledger_id=None, making=None, doomed=ledgers_of(found))


def forget_doomed(found: Subscription, ledger_ids: Iterable[int]) -> Subscription:
    """Remove deleted ledgers from the doomed ones."""
    gone = set(ledger_ids)
    return replace(found, doomed=tuple(ledger_id for ledger_id in found.doomed if ledger_id not in gone))


def ledgers_of(found: Subscription) -> tuple[int, ...]:
    """All ledgers that it has or may have."""
    return _with(_with(found.doomed, found.ledger_id), found.making)


def _with(doomed: tuple[int, ...], ledger_id: int | None) -> tuple[int, ...]:
    return doomed if ledger_id is None or ledger_id in doomed else (*doomed, ledger_id)


def _owned(found: Subscription, owner: Owner) -> None:
    if found.owner != owner:
        newer = "its reader has lost it" if found.owner is None else f"it is read by {found.owner.name} now"
        raise StreamFenced(f"subscription {found.name}: {newer}")


def encode(found: Subscription) -> bytes:
    """Encode for the metadata store."""
    stored: dict[str, object] = {
        "format": FORMAT,
        "stream": found.stream_id,
        "name": found.name,
        "cursor": str(found.cursor),
        "created_ms": found.created_at_ms,
        "owner": None if found.owner is None else [found.owner.token, found.owner.session, found.owner.name],
        "ledger": found.ledger_id,
        "making": found.making,
        "doomed": list(found.doomed),
    }
    return json.dumps(stored, separators=(",", ":"), ensure_ascii=False).encode()


def decode(record: str, value: bytes) -> Subscription:
    """Decode from the metadata store.

    Args:
        record: name of the record, for messages.

    Raises:
        DamagedFile, NewerFormat: it cannot be decoded.
    """
    found = load_json(record, value, FORMAT, oldest=FORMAT)
    with reporting_damage(record):
        owner = found["owner"]
        return Subscription(
            stream_id=json_text(found["stream"]),
            name=json_text(found["name"]),
            cursor=Cursor.parse(json_text(found["cursor"])),
            created_at_ms=_number(found["created_ms"]),
            owner=None if owner is None else Owner(*map(json_text, owner)),
            ledger_id=None if found["ledger"] is None else _number(found["ledger"]),
            making=None if found["making"] is None else _number(found["making"]),
            doomed=tuple(map(_number, found["doomed"])),
        )


def cursor_of(payload: bytes, ledger_id: int) -> Cursor:
    """Decode an entry of a cursor ledger.

    Raises:
        DamagedFile: it cannot be decoded.
    """
    try:
        return Cursor.parse(payload.decode())
    except (UnicodeDecodeError, TallybookError) as error:
        raise DamagedFile(f"cursor ledger {ledger_id} cannot be decoded: {error}") from error


def _number(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise TypeError(f"{value!r} is not an id")
    return value
