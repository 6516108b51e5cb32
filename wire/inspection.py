"""Messages of repair and inspection: requests to a bookie, and its answers. ``messages`` has the other messages.

None of them is large: lists are paged, and only ``RepairAdd`` carries a batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeAlias

from tallybook.core.answers import (
    BookieStatus,
    CopyPlace,
    CopyTrace,
    DamagedBatch,
    DirectorySpace,
    EntryRange,
    HeldAnswer,
    HeldLedger,
    HeldLedgers,
)
from tallybook.core.buffers import Buffer
from tallybook.core.ids import NO_IDENTITY
from tallybook.proto import bookie_pb2 as pb


class RepairAdd(NamedTuple):
    """Store a batch that no writer can change any more."""

    batch: Buffer
    identity: bytes = NO_IDENTITY
    """Sent in the ``identity`` field of the request."""


class AskHeld(NamedTuple):
    """List the ranges that the bookie stores of a ledger, between two entries."""

    ledger_id: int
    first: int
    last: int


class AskDamaged(NamedTuple):
    """List batches that are known to be damaged, after this ledger and first entry."""

    after_ledger_id: int
    after_first_entry_id: int
    limit: int


class AskHeldLedgers(NamedTuple):
    """List the ledgers of which the bookie stores something."""

    after: int
    limit: int


class EndLimbo(NamedTuple):
    """Report that the bookie has every entry of a ledger again, so that its limbo can end."""

    ledger_id: int


class AskStatus(NamedTuple):
    """Read the status of the bookie."""


class AskTrace(NamedTuple):
    """Find where the copy of an entry is stored, and whether it is intact."""

    ledger_id: int
    entry_id: int


class Authorize(NamedTuple):
    """Ask whether the client may run an operator's command; the bookie records it in its audit log."""

    permission: str
    command: str
    arguments: str


class DamagedAnswer(NamedTuple):
    """A page of damaged batches."""

    batches: tuple[DamagedBatch, ...]


InspectionAsk: TypeAlias = (
    RepairAdd | AskHeld | AskDamaged | AskHeldLedgers | EndLimbo | AskStatus | AskTrace | Authorize
)
InspectionAnswer: TypeAlias = HeldAnswer | DamagedAnswer | HeldLedgers | BookieStatus | CopyTrace

INSPECTION_ASKS: Final[dict[type, tuple[str, Callable[..., Any], tuple[str, ...]]]] = {
    RepairAdd: ("repair_add", pb.RepairAdd, ()),
    AskHeld: ("held", pb.Held, AskHeld._fields),
    AskDamaged: ("damaged", pb.Damaged, AskDamaged._fields),
    AskHeldLedgers: ("held_ledgers", pb.HeldLedgers, AskHeldLedgers._fields),
    EndLimbo: ("end_limbo", pb.EndLimbo, EndLimbo._fields),
    AskStatus: ("status", pb.Status, ()),
    AskTrace: ("trace", pb.Trace, AskTrace._fields),
    Authorize: ("authorize", pb.Authorize, Authorize._fields),
}
"""For each kind of request: its field in ``Request``, its protobuf message, and the fields that both have."""


def put_inspection(reply: pb.Reply, answer: InspectionAnswer) -> None:
    """Put ``answer`` into ``reply``."""
    if isinstance(answer, HeldAnswer):
        ranges = [pb.EntryRange(first=first, last=last) for first, last in answer.ranges]
        message = pb.HeldAnswer(
            ranges=ranges, looked_up_to=answer.looked_up_to, limbo=answer.limbo, writer=answer.writer
        )
        reply.held_answer.CopyFrom(message)
    elif isinstance(answer, DamagedAnswer):
        batches = [pb.DamagedBatch(**batch._asdict()) for batch in answer.batches]
        reply.damaged_answer.CopyFrom(pb.DamagedAnswer(batches=batches))
    elif isinstance(answer, HeldLedgers):
        ledgers = [pb.HeldLedger(**ledger._asdict()) for ledger in answer.ledgers]
        reply.held_ledgers_answer.CopyFrom(pb.HeldLedgersAnswer(ledgers=ledgers, complete=answer.complete))
    elif isinstance(answer, BookieStatus):
        directories = [pb.DirectorySpace(**directory._asdict()) for directory in answer.directories]
        reply.status_answer.CopyFrom(pb.StatusAnswer(**{**answer._asdict(), "directories": directories}))
    else:
        places = [pb.CopyPlace(**place._asdict()) for place in answer.places]
        reply.trace_answer.CopyFrom(pb.TraceAnswer(**{**answer._asdict(), "places": places}))


def _held(reply: pb.Reply) -> HeldAnswer:
    answer = reply.held_answer
    ranges = tuple(EntryRange(each.first, each.last) for each in answer.ranges)
    writer = answer.writer if answer.HasField("writer") else None
    return HeldAnswer(ranges, answer.looked_up_to, answer.limbo, writer)


def _damaged(reply: pb.Reply) -> DamagedAnswer:
    return DamagedAnswer(tuple(_plain(DamagedBatch, each) for each in reply.damaged_answer.batches))


def _held_ledgers(reply: pb.Reply) -> HeldLedgers:
    answer = reply.held_ledgers_answer
    return HeldLedgers(tuple(_plain(HeldLedger, each) for each in answer.ledgers), answer.complete)


def _status(reply: pb.Reply) -> BookieStatus:
    answer = reply.status_answer
    status: BookieStatus = _plain(BookieStatus, answer)
    return status._replace(directories=tuple(_plain(DirectorySpace, each) for each in answer.directories))


def _trace(reply: pb.Reply) -> CopyTrace:
    answer = reply.trace_answer
    trace: CopyTrace = _plain(CopyTrace, answer)
    return trace._replace(places=tuple(_plain(CopyPlace, each) for each in answer.places))


def _plain(kind: Any, message: Any) -> Any:
    """Convert a message to the value type with the same field names."""
    return kind(*[getattr(message, field) for field in kind._fields])


INSPECTION_ANSWERS: Final[dict[str, Callable[[pb.Reply], InspectionAnswer]]] = {
    "held_answer": _held,
    "damaged_answer": _damaged,
    "held_ledgers_answer": _held_ledgers,
    "status_answer": _status,
    "trace_answer": _trace,
}
"""For each answer field of ``Reply``: the function that decodes it."""
