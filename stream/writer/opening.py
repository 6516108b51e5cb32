"""Taking a stream over: from here on nobody else adds to it, and where it stands is settled."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

from tallybook.client.client import Client
from tallybook.core.errors import StreamEnded, TallybookError
from tallybook.runtime.clock import Clock
from tallybook.runtime.logging import logger

from ..catalog import Catalog
from ..compression import Compression
from ..head import Head, Owner, seal, take
from ..load import StreamLoad
from .ending import recovered_end
from .flow import Flow
from .loss import end_after_loss, is_loss

_log = logger("stream.opening")


def flow_of(head: Head, client: Client, clock: Clock, load: StreamLoad) -> Flow:
    """What a writer appends to a stream that it has taken over."""
    return Flow(
        head.settled_marks,
        head.last_place,
        head.tag,
        Compression.named(head.policy.compression),
        client.budget,
        clock,
        load,
        most_bytes=client.max_entry_bytes,
    )


async def take_over(
    catalog: Catalog,
    client: Client,
    clock: Clock,
    stream_id: str,
    owner: Owner,
    *,
    free: Callable[[str, Owner | None], Awaitable[bool]],
    accept_loss: bool = False,
) -> Head:
    """Become the owner of a stream, fence the one before, and settle what it left.

    Args:
        free: whether the stream may be taken from its owner; where not, the head is read again, and it is asked again.
            It waits in between, and raises when it has waited enough.
        accept_loss: whether to go on where the end of what that one left is lost; see ``loss``.

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
    left = head.open_segments
    for index, segment in enumerate(left):
        before, now_ms = head.settled_marks, clock.wall_us() // 1000
        try:
            found = await recovered_end(client, segment, before, head.tag, now_ms)
        except TallybookError as error:
            if not (accept_loss and is_loss(error)):
                raise
            _log.warning("end of a stream is lost", stream=head.name, segment=segment.number, error=error.message)
            found = await end_after_loss(client, segment, left[index + 1 :], before, head.tag, now_ms)
        head = await catalog.change(stream_id, partial(seal, owner=owner, number=segment.number, **found.as_sealed))
        if head.ended:
            raise StreamEnded(f"stream {head.name} has ended")
    return await catalog.fold(head)
