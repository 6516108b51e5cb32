"""Streams: a list in pages, one of them, and how far its subscriptions are behind."""

from __future__ import annotations

from contextlib import aclosing
from datetime import UTC, datetime
from typing import Final

from tallybook.core.errors import DamagedFile, InvalidArgument, NewerFormat, NoSuchStream, TallybookError
from tallybook.core.ids import MAX_ID
from tallybook.runtime.clock import Clock
from tallybook.runtime.http_api import Asked
from tallybook.runtime.tasks import Tasks
from tallybook.stream import SegmentInfo, StreamInfo, StreamStore, SubscriptionInfo
from tallybook.stream.names import DEFAULT_NAMESPACE, check_stream_name

from ..stores import Stores
from .lags import lag_of, raise_defect
from .tails import Tail, Tails

PAGE: Final = 50
MOST: Final = 200
MOST_SUBSCRIPTIONS: Final = 100
MOST_NAME_CHARS: Final = 1_000


class Streams:
    """What the endpoints below ``/api/v1/streams`` do."""

    def __init__(self, stores: Stores, clock: Clock, looks: Tasks) -> None:
        self._stores = stores
        self._tails = Tails(stores, clock, looks)

    async def namespaces(self, asked: Asked) -> object:
        """Namespaces after a name; ``next`` is where to go on, if there are more, and ``total`` how many there are."""
        after, limit = _name(asked), asked.count("limit", PAGE, MOST) or PAGE
        names = [name async for name in self._stores.default.namespaces()]
        left = [name for name in names if name > after]
        page = left[:limit]
        return {"namespaces": page, "next": page[-1] if len(left) > limit else None, "total": len(names)}

    async def list(self, asked: Asked) -> object:
        """Streams of a namespace by their names; ``next`` is where to go on, if there are more."""
        namespace = asked.query.get("namespace", DEFAULT_NAMESPACE)
        after, limit = asked.query.get("after", ""), asked.count("limit", PAGE, MOST) or PAGE
        if after:
            check_stream_name(after)
        infos: list[StreamInfo] = []
        unreadable: list[dict[str, object]] = []
        last, following = "", None
        with self._stores.of(namespace) as store:
            async with aclosing(store.list(asked.query.get("prefix", ""), after=after)) as names:
                async for name in names:
                    if len(infos) + len(unreadable) == limit:
                        following = last
                        break
                    last = name
                    try:
                        infos.append(await store.info(name))
                    except NoSuchStream:
                        # Deleted since the listing named it.
                        continue
                    except (DamagedFile, NewerFormat) as error:
                        unreadable.append({"name": name, "namespace": namespace, "unreadable": error.message})
            # Within: the looks are to use this very store.
            tails = await self._tails.of(infos)
        rows = [{**stream_told(each), **_tail_told(tails.get(each.stream_id, Tail()))} for each in infos]
        rows += unreadable
        return {
            "namespace": namespace,
            "streams": sorted(rows, key=lambda row: str(row["name"])),
            "next": following,
        }

    async def one(self, asked: Asked) -> object:
        """One of them, with its subscriptions after a name; ``next`` is where to go on, if there are more."""
        name, after, following = asked.path["stream"], _name(asked), None
        limit = asked.count("limit", MOST_SUBSCRIPTIONS, MOST) or MOST_SUBSCRIPTIONS
        with self._stores.of(asked.path["namespace"]) as store:
            found = stream_told(await store.info(name))
            try:
                last = await store.last(name)
            except TallybookError as error:
                raise_defect(error)
                last = None
            if last is not None:
                found["last_position"], found["next_sequence"] = str(last[0]), last[1] + 1
            subscriptions: list[dict[str, object]] = []
            end, why = None if last is None else last[1] + 1, ""
            try:
                async with aclosing(store.subscriptions(name, after=after)) as all_of_them:
                    async for each in all_of_them:
                        if len(subscriptions) == limit:
                            following = str(subscriptions[-1]["subscription"])
                            break
                        subscriptions.append(await _subscription_told(store, name, each, end))
            except (DamagedFile, NewerFormat) as error:
                # What comes after it is not told, either; the stream itself is.
                why = error.message
        return {**found, "subscriptions": subscriptions, "next": following, "why": why}

    async def segments(self, asked: Asked) -> object:
        """Its segments in pages, each with its ledger; ``next`` is where to go on, if there are more."""
        name, after = asked.path["stream"], asked.count("after", 0, MAX_ID)
        limit = asked.count("limit", PAGE, MOST) or PAGE
        rows: list[dict[str, object]] = []
        following: int | None = None
        with self._stores.of(asked.path["namespace"]) as store:
            async with aclosing(store.segments(name, after=after)) as found:
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


async def _subscription_told(
    store: StreamStore, name: str, found: SubscriptionInfo, end: int | None
) -> dict[str, object]:
    lag = await lag_of(store, name, found, end)
    return {
        "subscription": found.name,
        "cursor": None if found.cursor is None else str(found.cursor),
        "reader": found.reader,
        "lag_records": lag.records,
        "why": lag.why,
    }


def _tail_told(found: Tail) -> dict[str, object]:
    return {
        "end_sequence": found.next_sequence,
        "largest_lag_records": found.lag,
        "subscriptions": found.subscriptions,
    }


def _name(asked: Asked) -> str:
    """Of what comes before the page that is asked for."""
    after = asked.query.get("after", "")
    if len(after) > MOST_NAME_CHARS or not after.isprintable():
        raise InvalidArgument("after must be a name")
    return after


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
