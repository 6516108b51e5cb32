"""What the metadata store keeps of a sink besides its ledgers: names and bytes of records. Pure.

    sinks/sales                       which transaction was committed last, and its ledgers
    sinks/once/UUID                   likewise, of a sink with a single transaction; goes once its ledgers vouch for it
    sink-attempts/sales/17-4711       ledger 4711 was created for transaction 17
    sink-attempts-once/UUID-4711      likewise, of a sink with a single transaction
    sink-clock                        counts up; see ``transactions.View``

docs/formats/metadata.md has the bytes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, Final

from tallybook.core.errors import DamagedFile, InvalidArgument
from tallybook.core.ids import MAX_ID
from tallybook.core.limits import KIB

from .record_format import check_format
from .record_json import NOT_UNDERSTOOD

FORMAT: Final = 2
_FORMAT_OF_WHOLE_IDS: Final = 1

SINKS: Final = "sinks/"
ATTEMPTS: Final = "sink-attempts/"
ATTEMPTS_ONCE: Final = "sink-attempts-once/"
CLOCK: Final = "sink-clock"
ONCE: Final = "once/"
"""What the name of a sink with a single transaction begins with. Other names have no slash."""

MAX_LEDGERS: Final = 10_000
"""Of one transaction."""
MAX_LEDGERS_BYTES: Final = 48 * KIB
"""Of their ids in a record, which leaves room for the rest; 10,000 fit if they lie up to 1,000 apart."""
MAX_GIVEN_UP: Final = 200
"""Ledgers of a sink that are being deleted at a time."""


@dataclass(frozen=True, slots=True)
class Committed:
    """The last transaction of a sink, and its ledgers."""

    number: int
    ledger_ids: tuple[int, ...]
    owner: str = ""


NOTHING: Final = Committed(-1, ())
"""Before the first transaction of a sink."""


@dataclass(frozen=True, slots=True)
class SinkRecord:
    """What is known of a sink.

    Args:
        since: for a sink with a single transaction: the tick of the clock from which on its ledgers vouch for
            themselves, once that is settled.
        given_up: ledgers of no committed transaction that are being deleted: no commit may name them any more.
    """

    last: Committed = NOTHING
    since: int | None = None
    given_up: tuple[int, ...] = ()

    def encode(self) -> bytes:
        """For the store."""
        found: dict[str, object] = {"format": FORMAT, "last": self.last.number, "ledgers": _steps(self.last.ledger_ids)}
        if self.last.owner:
            found["owner"] = self.last.owner
        if self.since is not None:
            found["since"] = self.since
        if self.given_up:
            found["given_up"] = _steps(self.given_up)
        return json.dumps(found, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, name: str, value: bytes) -> SinkRecord:
        """From the store.

        Raises:
            DamagedFile, NewerFormat: it cannot be understood.
        """
        try:
            found = json.loads(value)
            check_format(name, found, FORMAT)
            version = found["format"]
            number, ledger_ids = found["last"], _ids_of(found["ledgers"], whole=version == _FORMAT_OF_WHOLE_IDS)
            owner, since, given_up = found.get("owner", ""), found.get("since"), _ids_of(found.get("given_up", []))
        except NOT_UNDERSTOOD as error:
            raise DamagedFile(f"the record {name} cannot be understood: {error}") from error
        nothing = (type(number), number, ledger_ids) == (int, NOTHING.number, [])
        numbers = [*ledger_ids, *given_up, *([] if nothing else [number]), *([] if since is None else [since])]
        sound = isinstance(owner, str) and all(type(each) is int and 0 <= each <= MAX_ID for each in numbers)
        if version not in (FORMAT, _FORMAT_OF_WHOLE_IDS) or not sound:
            raise DamagedFile(f"the record {name} is of format {version}, or damaged; this Tallybook knows {FORMAT}")
        last = NOTHING if nothing else Committed(number, tuple(ledger_ids), owner)
        return cls(last, since, tuple(given_up))


def check_fits(committed: Committed) -> Committed:
    """Return what a record can hold.

    Raises:
        InvalidArgument: there are too many ledgers.
    """
    count, size = len(committed.ledger_ids), len(json.dumps(_steps(committed.ledger_ids), separators=(",", ":")))
    if count > MAX_LEDGERS or size > MAX_LEDGERS_BYTES:
        raise InvalidArgument(
            f"{count} ledgers are too many for one transaction: up to {MAX_LEDGERS}, or fewer where their ids lie far "
            "apart; let fewer tasks write"
        )
    return committed


def is_once(sink: str) -> bool:
    """Whether a sink has a single transaction."""
    return sink.startswith(ONCE)


def attempts_of(sink: str) -> str:
    """What the names of its attempts begin with."""
    # One folder for all of them: a store may keep folders for ever.
    return f"{ATTEMPTS_ONCE}{sink.removeprefix(ONCE)}-" if is_once(sink) else f"{ATTEMPTS}{sink}/"


def attempt_name(sink: str, number: int, ledger_id: int) -> str:
    """The name of the record that tells of a ledger."""
    return f"{attempts_of(sink)}{'' if is_once(sink) else f'{number}-'}{ledger_id}"


def attempt_of(name: str) -> tuple[int, int] | None:
    """Number of the transaction and ledger that the name of an attempt tells of; ``None`` if it is none."""
    before, _, ledger_id = name.rpartition("-")
    number = "0" if name.startswith(ATTEMPTS_ONCE) else before.rpartition("/")[2]
    return (int(number), int(ledger_id)) if number.isdecimal() and ledger_id.isdecimal() else None


def _steps(ledger_ids: Iterable[int]) -> list[int]:
    """Ascending ids as the first one and the steps to the others: ids of a job lie close together."""
    found = list(ledger_ids)
    return [*found[:1], *(after - before for before, after in pairwise(found))]


def _ids_of(steps: Any, *, whole: bool = False) -> list[int]:
    if not isinstance(steps, list) or not all(type(step) is int for step in steps):
        raise TypeError("ids are a list of numbers")
    return steps if whole else list(accumulate(steps))
