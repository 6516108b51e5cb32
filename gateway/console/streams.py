"""Streams: a list in pages, one of them, and how far its subscriptions are behind."""

from __future__ import annotations

from contextlib import aclosing
from datetime import UTC, datetime
from typing import Final

from tallybook.core.errors import NoSuchStream, TallybookError, is_defect
from tallybook.core.ids import MAX_ID
from tallybook.runtime.http_api import Asked
from tallybook.stream import SegmentInfo, StreamInfo, StreamStore, SubscriptionInfo
from tallybook.stream.names import DEFAULT_NAMESPACE, check_stream_name

from ..stores import Stores

PAGE: Final = 50
MOST: Final = 200
MOST_SUBSCRIPTIONS: Final = 100


class Streams:
    """What the endpoints below ``/api/v1/streams`` do."""

    def __init__(self, stores: Stores) -> None:
        self._stores = stores

    async def namespaces(self, asked: Asked) -> object:
        """All namespaces."""
        return {"namespaces": [name async for name in self._stores.default.namespaces()]}

    async def list(self, asked: Asked) -> object:
        """Streams of a namespace by their names; ``next`` is where to go on, if there are more."""
        namespace = asked.query.get("namespace", DEFAULT_NAMESPACE)
        after, limit = asked.query.get("after", ""), asked.count("limit", PAGE, MOST) or PAGE
        if after:
            check_stream_name(after)
        rows: list[dict[str, object]] = []
        following: str | None = None
        with self._stores.of(namespace) as store:
            async with aclosing(store.list(asked.query.get("prefix", ""), after=after)) as names:  # type: ignore[type-var]
                async for name in names:
                    if len(rows) == limit:
                        following = str(rows[-1]["name"])
                        break
                    try:
                        rows.append(stream_told(await store.info(name)))
                    except NoSuchStream:
                        # Deleted since the listing named it.
                        continue
        return {"namespace": namespace, "streams": rows, "next": following}

    async def one(self, asked: Asked) -> object:
        """One of them, with its subscriptions."""
        name = asked.path["stream"]
        with self._stores.of(asked.path["namespace"]) as store:
            found = stream_told(await store.info(name))
            try:
                last = await store.last(name)
            except TallybookError as error:
                _raise_defect(error)
                last = None
            if last is not None:
                found["last_position"], found["next_sequence"] = str(last[0]), last[1] + 1
            subscriptions: list[dict[str, object]] = []
            async with aclosing(store.subscriptions(name)) as all_of_them:  # type: ignore[type-var]
                async for each in all_of_them:
                    if len(subscriptions) == MOST_SUBSCRIPTIONS:
                        break
                    subscriptions.append(await _lag(store, name, each, None if last is None else last[1] + 1))
        return {**found, "subscriptions": subscriptions}

    async def segments(self, asked: Asked) -> object:
        """Its segments in pages, each with its ledger; ``next`` is where to go on, if there are more."""
        name, after = asked.path["stream"], asked.count("after", 0, MAX_ID)
        limit = asked.count("limit", PAGE, MOST) or PAGE
        rows: list[dict[str, object]] = []
        following: int | None = None
        with self._stores.of(asked.path["namespace"]) as store:
            async with aclosing(store.segments(name, after=after)) as found:  # type: ignore[type-var]
                async for each in found:
                    if len(rows) == limit:
                        following = after
                        break
                    rows.append(_segment_told(each))
                    after = each.number
        return {"segments": rows, "next": following}


def _segment_told(found: SegmentInfo) -> dict[str, object]:
    return {
        "segment": found.number,
        "ledger_id": found.ledger_id,
        "began_at": _moment(found.began_at_ms),
        "ended_at": None if found.ended_at_ms is None else _moment(found.ended_at_ms),
        "next_sequence": found.next_sequence,
        "bytes": found.payload_bytes,
    }


def _moment(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds")


async def _lag(store: StreamStore, name: str, found: SubscriptionInfo, end: int | None) -> dict[str, object]:
    lag: int | None = None
    why = "how far it has come is lost: reset it" if found.cursor is None else ""
    if found.cursor is not None and end is not None:
        try:
            lag = max(0, end - await store.sequence_of(name, found.cursor))
        except TallybookError as error:
            _raise_defect(error)
            why = error.message
    elif end is None:
        why = "the end of the stream is not known"
    return {
        "subscription": found.name,
        "cursor": None if found.cursor is None else str(found.cursor),
        "reader": found.reader,
        "lag_records": lag,
        "why": why,
    }


def _raise_defect(error: TallybookError) -> None:
    """What cannot be told now is left out; a defect is not."""
    if is_defect(error):
        raise error


def stream_told(found: StreamInfo) -> dict[str, object]:
    """What is known of a stream."""
    return {
        "name": found.name,
        "namespace": found.namespace,
        "stream_id": found.stream_id,
        "created_at": _moment(found.created_at_ms),
        "first_sequence": found.first_sequence,
        "next_sequence": found.next_sequence,
        "segments": found.segments,
        "owner": found.owner,
        "ended": found.ended,
        "policy": found.policy.model_dump(mode="json"),
        "last_position": None,
    }
