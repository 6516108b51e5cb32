"""Records of a sink in the metadata store: names and encoding.

    sinks/sales                       which transaction was committed last, and its ledgers
    sinks/once/UUID                   the same for a one-transaction sink; deleted once its ledgers have their tick
    sink-attempts/sales/17-4711       ledger 4711 was created for transaction 17
    sink-attempts-once/UUID-4711      the same for a one-transaction sink
    sink-clock                        counts up; see ``transactions.View``

docs/reference/formats/metadata.md shows the encoding.
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

from ..records.format import load_json, reporting_damage

FORMAT: Final = 2
_FORMAT_OF_WHOLE_IDS: Final = 1

SINKS: Final = "sinks/"
ATTEMPTS: Final = "sink-attempts/"
ATTEMPTS_ONCE: Final = "sink-attempts-once/"
CLOCK: Final = "sink-clock"
ONCE: Final = "once/"
"""Name prefix of one-transaction sinks. Other names have no slash."""

MAX_LEDGERS: Final = 10_000
"""Maximum ledgers of one transaction."""
MAX_LEDGERS_BYTES: Final = 48 * KIB
"""Maximum length of their ids in a record; 10,000 fit if they are up to 1,000 apart."""
MAX_GIVEN_UP: Final = 200
"""Maximum ledgers of a sink that are being deleted at once."""


@dataclass(frozen=True, slots=True)
class Committed:
    """The last transaction of a sink, and its ledgers."""

    number: int
    ledger_ids: tuple[int, ...]
    owner: str = ""


NOTHING: Final = Committed(-1, ())
"""Stands before the first transaction of a sink."""


@dataclass(frozen=True, slots=True)
class SinkRecord:
    """Content of a sink's record.

    Args:
        since: for a one-transaction sink: the tick of the clock from which its ledgers are visible without this
            record.
        given_up: uncommitted ledgers that are being deleted: no commit may name them any more.
    """

    last: Committed = NOTHING
    since: int | None = None
    given_up: tuple[int, ...] = ()

    def encode(self) -> bytes:
        """Encode for the store."""
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
        """Decode from the store.

        Raises:
            DamagedFile, NewerFormat: it is unreadable.
        """
        found = load_json(name, value, FORMAT)
        with reporting_damage(name):
            version = found["format"]
            number, ledger_ids = found["last"], _ids_of(found["ledgers"], whole=version == _FORMAT_OF_WHOLE_IDS)
            owner, since, given_up = found.get("owner", ""), found.get("since"), _ids_of(found.get("given_up", []))
        nothing = (type(number), number, ledger_ids) == (int, NOTHING.number, [])
        numbers = [*ledger_ids, *given_up, *([] if nothing else [number]), *([] if since is None else [since])]
        sound = isinstance(owner, str) and all(type(each) is int and 0 <= each <= MAX_ID for each in numbers)
        if version not in (FORMAT, _FORMAT_OF_WHOLE_IDS) or not sound:
            raise DamagedFile(f"the record {name} is of format {version}, or damaged; this Tallybook knows {FORMAT}")
        last = NOTHING if nothing else Committed(number, tuple(ledger_ids), owner)
        return cls(last, since, tuple(given_up))


def check_fits(committed: Committed) -> Committed:
    """Return ``committed`` if it fits into a record.

    Raises:
        InvalidArgument: there are too many ledgers.
    """
    count, size = len(committed.ledger_ids), len(json.dumps(_steps(committed.ledger_ids), separators=(",", ":")))
    if count > MAX_LEDGERS or size > MAX_LEDGERS_BYTES:
        raise InvalidArgument(
            f"{count} ledgers are too many for one transaction: at most {MAX_LEDGERS}, or fewer if their ids are far "
            "apart; write with fewer tasks"
        )
    return committed


def is_once(sink: str) -> bool:
    """Whether a sink has only one transaction."""
    return sink.startswith(ONCE)


def attempts_of(sink: str) -> str:
    """Name prefix of the sink's attempt records."""
    # One folder for all of them: a store may never delete folders.
    return f"{ATTEMPTS_ONCE}{sink.removeprefix(ONCE)}-" if is_once(sink) else f"{ATTEMPTS}{sink}/"


def attempt_name(sink: str, number: int, ledger_id: int) -> str:
    """Name of a ledger's attempt record."""
    return f"{attempts_of(sink)}{'' if is_once(sink) else f'{number}-'}{ledger_id}"


def attempt_of(name: str) -> tuple[int, int] | None:
    """Transaction number and ledger id in the name of an attempt record; ``None`` if invalid."""
    before, _, ledger_id = name.rpartition("-")
    number = "0" if name.startswith(ATTEMPTS_ONCE) else before.rpartition("/")[2]
    return (int(number), int(ledger_id)) if number.isdecimal() and ledger_id.isdecimal() else None


def _steps(ledger_ids: Iterable[int]) -> list[int]:
    """Ascending ids as the first id and differences: ids of a job are close together."""
    found = list(ledger_ids)
    return [*found[:1], *(after - before for before, after in pairwise(found))]


def _ids_of(steps: Any, *, whole: bool = False) -> list[int]:
    if not isinstance(steps, list) or not all(type(step) is int for step in steps):
        raise TypeError("ids are a list of numbers")
    return steps if whole else list(accumulate(steps))
