"""Taking a stream over: from here on nobody else adds to it, and where it stands is settled."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

from tallybook.client.client import Client
from tallybook.core.errors import StreamEnded
from tallybook.runtime.clock import Clock

from ..catalog import Catalog
from ..head import Head, Owner, seal, take
from .ending import recovered_end


async def take_over(
    catalog: Catalog,
    client: Client,
    clock: Clock,
    stream_id: str,
    owner: Owner,
    *,
    free: Callable[[str, Owner | None], Awaitable[bool]],
) -> Head:
    """Become the owner of a stream, fence whoever was, and settle what he left.

    Args:
        free: whether the stream may be taken from its owner; where not, the head is read again, and it is asked again.
            It waits in between, and raises when it has waited enough.

    Returns:
        The head, which says where the stream stands, with no segment open.

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
    for segment in head.open_segments:
        found = await recovered_end(client, segment, head.settled_marks, head.tag, clock.wall_us() // 1000)
        head = await catalog.change(stream_id, partial(seal, owner=owner, number=segment.number, **found.as_sealed))
        if head.ended:
            raise StreamEnded(f"stream {head.name} has ended")
    return await catalog.fold(head)
