"""Takes a stream over: becomes its owner, fences the previous writer, and recovers its open segments."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

from tallybook.client.client import Client
from tallybook.core.errors import StreamEnded, TallybookError
from tallybook.runtime.clock import Clock
from tallybook.runtime.logging import logger

from ..catalog.catalog import StreamCatalog
from ..catalog.head import Head, Owner, seal, take
from ..reader.segment_end import recovered_end
from .loss import end_after_loss, is_loss

_log = logger("stream.opening")


async def take_over(
    catalog: StreamCatalog,
    client: Client,
    clock: Clock,
    stream_id: str,
    owner: Owner,
    *,
    free: Callable[[str, Owner | None], Awaitable[bool]],
    accept_loss: bool = False,
) -> Head:
    """Become the owner of a stream, fence the previous owner, and seal its open segments.

    Args:
        free: whether the stream may be taken from its owner; called repeatedly with the current owner until it returns
            true. It pauses itself, and raises when the wait is over.
        accept_loss: continue although the end of the stream is lost; see ``loss``.

    Returns:
        The head, with the current marks and no open segment.

    Raises:
        StreamEnded: the stream is sealed.
        StreamFenced: a newer writer has taken it meanwhile.
        NoSuchStream: the stream was deleted.
        As ``StreamCatalog.change``, ``Client.open_ledger`` and ``LedgerReader.read_entry``: the stream has this owner,
            but its segments are not sealed; repeat the call.
    """
    while True:
        head = await catalog.read(stream_id)
        if head.ended:
            raise StreamEnded(f"stream {head.name} is sealed")
        if not await free(f"stream {head.name}", head.owner):
            continue
        head = await catalog.change(stream_id, partial(take, owner=owner, in_place_of=head.owner))
        # Another process may have been first.
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
            raise StreamEnded(f"stream {head.name} is sealed")
    return await catalog.fold(head)
