"""Taking a stream over: from here on nobody else adds to it, and where it stands is settled."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

from tallybook.client.client import Client
from tallybook.core.errors import StreamEnded
from tallybook.runtime.clock import Clock

from ..catalog import Catalog
from ..envelope import Kind, Marks
from ..head import Head, Owner, end_stream, release, seal, take
from ..position import TAG_CHARS
from .ending import last_record, recovered_end


@dataclass(frozen=True, slots=True)
class Opened:
    """A stream that was taken over, with no segment open.

    Args:
        marks: where it stands.
        last_place: segment, entry and slot of its last record; ``None`` if none is there.
    """

    head: Head
    marks: Marks
    last_place: tuple[int, int, int] | None


async def take_over(
    catalog: Catalog,
    client: Client,
    clock: Clock,
    stream_id: str,
    owner: Owner,
    *,
    free: Callable[[str, Owner | None], Awaitable[bool]],
) -> Opened:
    """Become the owner of a stream, fence whoever was, and settle what he left.

    Args:
        free: whether the stream may be taken from its owner; where not, the head is read again, and it is asked
        again. It
            waits in between, and raises when it has waited enough.

    Raises:
        StreamEnded: nothing can be added to it.
        StreamFenced: a newer writer has taken it meanwhile.
        NoSuchStream: it was deleted.
        As ``Catalog.change``, ``Client.open_ledger`` and ``LedgerReader.read_entry``: the stream has this owner, and
            is not settled; the same call, or another writer's, does it.
    """
    while True:
        head = await catalog.read(stream_id)
        if head.ended:
            raise StreamEnded(f"stream {head.name} has ended")
        if not await free(f"stream {head.name}", head.owner):
            continue
        head = await catalog.change(stream_id, partial(take, owner=owner, in_place_of=head.owner))
        # Somebody else may have come first.
        if head.owner == owner:
            break
    tag, place, settled = head.stream_id[:TAG_CHARS], None, None
    for segment in head.open_segments:
        found = await recovered_end(client, segment, head.settled_marks, tag, clock.wall_us() // 1000)
        place = found.last_place or place

        head = await catalog.change(stream_id, partial(seal, owner=owner, number=segment.number, end=found.end))
        settled = found.kind
    if settled is Kind.END_OF_STREAM:
        await catalog.change(stream_id, partial(end_stream, owner=owner))
        await catalog.change(stream_id, partial(release, owner=owner))
        raise StreamEnded(f"stream {head.name} has ended")
    head = await catalog.fold(head)
    return Opened(head, head.settled_marks, place or await _last_place(client, head))


async def _last_place(client: Client, head: Head) -> tuple[int, int, int] | None:
    """Where the last record is, of segments that have all ended."""
    for segment in reversed(head.segments):
        if segment.end is not None:
            reader = await client.open_ledger(segment.ledger_id, recover=False)
            found = await last_record(reader, segment.number, segment.end.last_entry, head.stream_id[:TAG_CHARS])
            if found is not None:
                return found
    return None
