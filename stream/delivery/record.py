"""What the metadata store keeps of deliveries: batches of records on their way into a stream. Pure.

    stream-deliveries/ID/SINK       the last batch of a sink that was to come into the stream, and how far that is
    sinks/stream.ID.SINK            which batch was committed last, and its staged ledgers (``metadata/sink_record``)

``deliveries`` says how a batch gets there. docs/formats/metadata.md has the bytes.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from enum import Enum
from typing import Final

from tallybook.core.errors import DamagedFile
from tallybook.core.ids import MAX_ID
from tallybook.metadata.model import LedgerMetadata
from tallybook.metadata.record_format import check_format
from tallybook.metadata.record_json import NOT_UNDERSTOOD
from tallybook.metadata.sink_record import SINKS
from tallybook.metadata.transactions import STAGED, Transaction

DELIVERIES: Final = "stream-deliveries/"
PART: Final = "tallybook.part"
"""Key, among a staged ledger's custom metadata, of which part of its batch it is. Parts keep their order."""
FORMAT: Final = 1

_ID: Final = re.compile(rb"delivery/([0-9]{1,19})-([0-9]{1,19})")


class Stage(Enum):
    """How far a batch is."""

    ANNOUNCED = "announced"
    """It may be committed, and some of its records may be in the stream."""
    WITHDRAWN = "withdrawn"
    """Likewise, but it is committed already or never will be: another batch of the sink is about to be announced."""
    APPENDED = "appended"
    """All of its records are in the stream; staged ledgers may be left."""
    DONE = "done"
    GIVEN_UP = "given up"
    """It is committed, and can never be completed: who writes to its sink is told why, and nobody else tries again."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """The last batch of a sink that was to come into a stream.

    Args:
        number: of its transaction.
        since: no record of it has a lower number in the stream.
    """

    number: int
    since: int
    stage: Stage = Stage.ANNOUNCED

    def encode(self) -> bytes:
        """For the store."""
        found = {"format": FORMAT, "number": self.number, "since": self.since, "stage": self.stage.value}
        return json.dumps(found, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, record: str, value: bytes) -> Delivery:
        """From the store.

        Raises:
            DamagedFile, NewerFormat: it cannot be understood.
        """
        try:
            found = json.loads(value)
            check_format(record, found, FORMAT)
            version, number, since = found["format"], found["number"], found["since"]
            stage = Stage(found["stage"])
        except NOT_UNDERSTOOD as error:
            raise DamagedFile(f"the record {record} cannot be understood: {error}") from error
        if version != FORMAT or not all(type(each) is int and 0 <= each <= MAX_ID for each in (number, since)):
            raise DamagedFile(f"the record {record} is of format {version}, or damaged; this Tallybook knows {FORMAT}")
        return cls(number, since, stage)


def deliveries_of(stream_id: str) -> str:
    """What the names of the records of a stream's deliveries begin with."""
    return f"{DELIVERIES}{stream_id}/"


def staging_sink(stream_id: str, sink: str) -> str:
    """The sink that the staged ledgers of a sink of a stream belong to."""
    return f"{STAGED}{stream_id}.{sink}"


def staging_sinks(stream_id: str) -> str:
    """What the names of the records of all of these begin with."""
    return SINKS + staging_sink(stream_id, "")


def staging(stream_id: str, sink: str, number: int, owner: str = "") -> Transaction:
    """The transaction that commits the staged ledgers of a batch."""
    return Transaction(staging_sink(stream_id, sink), number, owner)


def part_of(metadata: LedgerMetadata) -> tuple[int, int]:
    """What a staged ledger comes after in its batch."""
    part = metadata.custom.get(PART, b"")
    return int(part) if part.isdigit() and len(part) < 19 else MAX_ID, metadata.ledger_id


def delivery_id(ledger_id: int, entry: int) -> bytes:
    """The id of the last record of a staged entry, by which it is known again in the stream."""
    return b"delivery/%d-%d" % (ledger_id, entry)


def delivered(dedup_id: bytes | None) -> tuple[int, int] | None:
    """The staged ledger and entry that an id names; ``None`` if it is another id."""
    found = _ID.fullmatch(dedup_id or b"")
    return None if found is None else (int(found[1]), int(found[2]))


MOST_ID_BYTES: Final = len(delivery_id(MAX_ID, MAX_ID))
