"""A subscription: how far a reader has come in a stream, and who that reader is just now. Pure.

How far it has come is kept in a ledger of its own, the *cursor ledger*, of which only the last entry counts: so an
advance is one append, and no write to the metadata store. The record names that ledger, and says where the
subscription stood when the ledger was begun. It is begun with the first advance, and given up whenever the record is
written anyway: when the reader leaves, when another one takes over, and after some thousands of advances. So what is
kept stays small, and a subscription that nobody reads has no ledger.

Who takes a subscription over fences the cursor ledger first: whoever had it cannot advance any more, and what it has
advanced to is known.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Final

from tallybook.core.errors import DamagedFile, InvalidArgument, StreamFenced, TallybookError
from tallybook.metadata.record_format import check_format
from tallybook.metadata.record_json import NOT_UNDERSTOOD

from ..head import Owner
from ..position import Position
from ..start import Start

FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class Cursor:
    """How far a reader has come.

    Args:
        position: of a record.
        after: whether that record is done with; else it comes next.
    """

    position: Position
    after: bool

    @property
    def start(self) -> Start:
        """Where to go on."""
        return Start.after(self.position) if self.after else Start.at(self.position)

    @property
    def order(self) -> tuple[tuple[int, int, int], bool]:
        """For comparing cursors of one stream."""
        return self.position.place, self.after

    def __str__(self) -> str:
        return f"{'after' if self.after else 'at'} {self.position}"

    @classmethod
    def parse(cls, text: str) -> Cursor:
        """The cursor that was printed as ``text``.

        Raises:
            InvalidArgument: it is none.
        """
        word, _, position = text.partition(" ")
        if word not in {"at", "after"}:
            raise InvalidArgument(f"a cursor is 'at' or 'after' a position, got {text!r}")
        return cls(Position.parse(position), word == "after")


@dataclass(frozen=True, slots=True)
class Subscription:
    """What is stored of a subscription.

    Args:
        cursor: how far it had come when its ledger was begun, or given up.
        ledger_id: of the cursor ledger; ``None``: there is none.
        making: the id of a ledger that is being made to be the next one, and may not be there yet.
        doomed: ledgers that count no more, and are being deleted.
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
    """Become the reader, in place of whoever was known to be; if it is somebody else by now, nothing changes."""
    return replace(found, owner=owner) if found.owner == in_place_of else found


def leave(found: Subscription, owner: Owner) -> Subscription:
    """Read it no more; how far it has come is in its ledger. If it is another's by now, nothing changes."""
    return replace(found, owner=None) if found.owner == owner else found


def announce(found: Subscription, owner: Owner, ledger_id: int) -> Subscription:
    """A cursor ledger is going to be made.

    Raises:
        StreamFenced: somebody else has the subscription.
    """
    _owned(found, owner)
    if ledger_id in {found.making, found.ledger_id}:
        return found
    return replace(found, making=ledger_id, doomed=_with(found.doomed, found.making))


def begin(found: Subscription, owner: Owner, ledger_id: int) -> Subscription:
    """The ledger that was announced is the cursor ledger.

    Raises:
        As ``announce``.
    """
    _owned(found, owner)
    if found.ledger_id == ledger_id:
        return found
    return replace(found, ledger_id=ledger_id, making=None, doomed=_with(found.doomed, found.ledger_id))


def rest(found: Subscription, owner: Owner, cursor: Cursor, *, leave: bool = False) -> Subscription:
    """Write down how far it has come, and give up its ledgers.

    Args:
        leave: whether it has no reader from here on.

    Raises:
        As ``announce``.
    """
    if leave and found.owner is None and found.ledger_id is None and found.cursor == cursor:
        return found
    _owned(found, owner)
    doomed = _with(_with(found.doomed, found.ledger_id), found.making)
    return replace(found, cursor=cursor, owner=None if leave else owner, ledger_id=None, making=None, doomed=doomed)


def retire(found: Subscription) -> Subscription:
    """It is being deleted: nobody reads it any more, and no ledger counts."""
    return replace(found, owner=None, ledger_id=None, making=None, doomed=ledgers_of(found))


def forget_doomed(found: Subscription, ledger_ids: Iterable[int]) -> Subscription:
    """These ledgers are deleted."""
    gone = set(ledger_ids)
    return replace(found, doomed=tuple(ledger_id for ledger_id in found.doomed if ledger_id not in gone))


def ledgers_of(found: Subscription) -> tuple[int, ...]:
    """All ledgers that it has, or may have."""
    return _with(_with(found.doomed, found.ledger_id), found.making)


def _with(doomed: tuple[int, ...], ledger_id: int | None) -> tuple[int, ...]:
    return doomed if ledger_id is None or ledger_id in doomed else (*doomed, ledger_id)


def _owned(found: Subscription, owner: Owner) -> None:
    if found.owner != owner:
        newer = "nobody" if found.owner is None else found.owner.name
        raise StreamFenced(f"subscription {found.name} is read by {newer} since")


def encode(found: Subscription) -> bytes:
    """For the store."""
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
    """From the store.

    Args:
        record: its name, for messages.

    Raises:
        DamagedFile, NewerFormat: it cannot be understood.
    """
    try:
        found = json.loads(value)
        check_format(record, found, FORMAT)
        if found["format"] != FORMAT:
            raise DamagedFile(f"the record {record} is of format {found['format']}; this Tallybook knows {FORMAT}")
        owner = found["owner"]
        return Subscription(
            stream_id=_text(found["stream"]),
            name=_text(found["name"]),
            cursor=Cursor.parse(_text(found["cursor"])),
            created_at_ms=_number(found["created_ms"]),
            owner=None if owner is None else Owner(*map(_text, owner)),
            ledger_id=None if found["ledger"] is None else _number(found["ledger"]),
            making=None if found["making"] is None else _number(found["making"]),
            doomed=tuple(map(_number, found["doomed"])),
        )
    except (*NOT_UNDERSTOOD, InvalidArgument) as error:
        raise DamagedFile(f"the record {record} cannot be understood: {error}") from error


def cursor_of(payload: bytes, ledger_id: int) -> Cursor:
    """What an entry of a cursor ledger says.

    Raises:
        DamagedFile: it says nothing.
    """
    try:
        return Cursor.parse(payload.decode())
    except (UnicodeDecodeError, TallybookError) as error:
        raise DamagedFile(f"cursor ledger {ledger_id} cannot be understood: {error}") from error


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    value.encode()  # JSON can name halves of characters, which have no encoding
    return value


def _number(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise TypeError(f"{value!r} is no id")
    return value
