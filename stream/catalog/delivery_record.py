"""The delivery records in the metadata store: the state of the last batch of each sink. Pure.

    stream-deliveries/ID/SINK       the last batch of a sink, and its stage
    sinks/stream.ID.SINK            the last committed batch, and its ledgers (``metadata/transactions/sink_record``)

``deliveries`` has the protocol, docs/reference/formats/metadata.md the format.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from enum import Enum
from typing import Final

from tallybook.core.errors import DamagedFile
from tallybook.core.ids import MAX_ID
from tallybook.metadata.ledger.model import LedgerMetadata
from tallybook.metadata.records.format import load_json, reporting_damage
from tallybook.metadata.transactions import SINKS, STAGED, Transaction

DELIVERIES: Final = "stream-deliveries/"
PART: Final = "tallybook.part"
"""Key in a staged ledger's custom metadata: the number of its part of the batch. Parts keep their order."""
FORMAT: Final = 1

_ID: Final = re.compile(rb"delivery/([0-9]{1,19})-([0-9]{1,19})")


class DeliveryStage(Enum):
    """The stage of a batch."""

    ANNOUNCED = "announced"
    """It may be committed, and some of its records may be in the stream."""
    WITHDRAWN = "withdrawn"
    """Likewise, but it is committed already or never will be: another batch of the sink will be announced."""
    APPENDED = "appended"
    """All of its records are in the stream; staged ledgers may be left."""
    DONE = "done"
    GIVEN_UP = "given up"
    """It is committed, but cannot be completed: only writers of its sink try again, and get the error."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """The last batch of a sink.

    Args:
        number: number of its transaction.
        since: its records have at least this number in the stream.
    """

    number: int
    since: int
    stage: DeliveryStage = DeliveryStage.ANNOUNCED

    def encode(self) -> bytes:
        """Encode for the metadata store."""
        found = {"format": FORMAT, "number": self.number, "since": self.since, "stage": self.stage.value}
        return json.dumps(found, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, record: str, value: bytes) -> Delivery:
        """Decode from the metadata store.

        Raises:
            DamagedFile, NewerFormat: it cannot be decoded.
        """
        found = load_json(record, value, FORMAT, oldest=FORMAT)
        with reporting_damage(record):
            number, since, stage = found["number"], found["since"], DeliveryStage(found["stage"])
        if not all(type(each) is int and 0 <= each <= MAX_ID for each in (number, since)):
            raise DamagedFile(f"the record {record} has no valid number or time: {number!r}, {since!r}")
        return cls(number, since, stage)


def deliveries_of(stream_id: str) -> str:
    """The prefix of the names of a stream's delivery records."""
    return f"{DELIVERIES}{stream_id}/"


def staging_sink(stream_id: str, sink: str) -> str:
    """The transaction sink of the staged ledgers of a stream's sink."""
    return f"{STAGED}{stream_id}.{sink}"


def staging_sinks(stream_id: str) -> str:
    """The prefix of the names of all transaction sinks of a stream."""
    return SINKS + staging_sink(stream_id, "")


def staging(stream_id: str, sink: str, number: int, owner: str = "") -> Transaction:
    """The transaction that commits the staged ledgers of a batch."""
    return Transaction(staging_sink(stream_id, sink), number, owner)


def part_of(metadata: LedgerMetadata) -> tuple[int, int]:
    """The sort key of a staged ledger in its batch."""
    part = metadata.custom.get(PART, b"")
    return int(part) if part.isdigit() and len(part) < 19 else MAX_ID, metadata.ledger_id


def delivery_id(ledger_id: int, entry: int) -> bytes:
    """The deduplication id of the last record of a staged entry, which identifies the entry in the stream."""
    return b"delivery/%d-%d" % (ledger_id, entry)


def delivered(dedup_id: bytes | None) -> tuple[int, int] | None:
    """The staged ledger and entry that a deduplication id names; ``None`` for any other id."""
    found = _ID.fullmatch(dedup_id or b"")
    return None if found is None else (int(found[1]), int(found[2]))


MAX_ID_BYTES: Final = len(delivery_id(MAX_ID, MAX_ID))
