"""Endpoints on streams: namespaces, list, details with subscriptions and their lags, segments."""

from __future__ import annotations

from contextlib import aclosing
from datetime import UTC, datetime
from typing import Final

from tallybook.core.errors import DamagedFile, InvalidArgument, NewerFormat, NoSuchStream, TallybookError
from tallybook.core.ids import MAX_ID
from tallybook.runtime.clock import Clock
from tallybook.runtime.http.endpoints import EndpointRequest
from tallybook.runtime.tasks import Tasks
from tallybook.stream import SegmentInfo, StreamInfo, StreamStore, SubscriptionInfo
from tallybook.stream.names import DEFAULT_NAMESPACE, check_stream_name

from ..streams.stores import StreamStores
from .tails import StreamTail, TailCache, raise_defect

PAGE: Final = 50
MAX_PAGE: Final = 200
MAX_SEARCHED: Final = 5_000
"""Names that are read for one page."""
MAX_SUBSCRIPTIONS: Final = 100
MAX_NAME_CHARS: Final = 1_000


class ConsoleStreamEndpoints:
    """The endpoints below ``/api/v1/streams``, and ``/api/v1/namespaces``."""

    def __init__(self, stores: StreamStores, clock: Clock, lookups: Tasks) -> None:
        self._stores = stores
        self._tails = TailCache(stores, clock, lookups)

    async def namespaces(self, request: EndpointRequest) -> object:
        """A page of namespaces after a name; ``next``: the ``after`` of the next page; ``total``: all namespaces."""
        after, limit = _name(request), request.count("limit", PAGE, MAX_PAGE) or PAGE
        names = [name async for name in self._stores.default.namespaces()]
        left = [name for name in names if name > after]
        page = left[:limit]
        return {"namespaces": page, "next": page[-1] if len(left) > limit else None, "total": len(names)}

    async def list(self, request: EndpointRequest) -> object:
        """A page of the streams of a namespace by name; ``next``: the ``after`` of the next page.

        With ``search``, of those whose names contain it, in any case. A page ends after ``MAX_SEARCHED`` names.
        """
        namespace = request.query.get("namespace", DEFAULT_NAMESPACE)
        after, limit = request.query.get("after", ""), request.count("limit", PAGE, MAX_PAGE) or PAGE
        if after:
            check_stream_name(after)
        infos: list[StreamInfo] = []
        unreadable: list[dict[str, object]] = []
        search, searched = request.query.get("search", "").strip().casefold(), 0
        last, following = "", None
        with self._stores.of(namespace) as store:
            async with aclosing(store.list(request.query.get("prefix", ""), after=after)) as names:
                async for name in names:
                    if len(infos) + len(unreadable) == limit or searched == MAX_SEARCHED:
                        following = last
                        break
                    last, searched = name, searched + 1
                    if search not in name.casefold():
                        continue
                    try:
                        infos.append(await store.info(name))
                    except NoSuchStream:
                        # Deleted after it was listed.
                        continue
                    except (DamagedFile, NewerFormat) as error:
                        unreadable.append({"name": name, "namespace": namespace, "unreadable": error.message})
            # Inside the block, so that the lookups use this store.
            tails = await self._tails.of(infos)
        rows = [{**stream_row(each), **_tail_row(tails.get(each.stream_id, StreamTail()))} for each in infos]
        rows += unreadable
        return {
            "namespace": namespace,
            "streams": sorted(rows, key=lambda row: str(row["name"])),
            "next": following,
        }

    async def details(self, request: EndpointRequest) -> object:
        """One stream, with a page of its subscriptions after a name; ``next``: the ``after`` of the next page."""
        name, after, following = request.path["stream"], _name(request), None
        limit = request.count("limit", MAX_SUBSCRIPTIONS, MAX_PAGE) or MAX_SUBSCRIPTIONS
        with self._stores.of(request.path["namespace"]) as store:
            found = stream_row(await store.info(name)) | {"stored_bytes": await store.stored_bytes(name)}
            try:
                last = await store.last(name)
            except TallybookError as error:
                raise_defect(error)
                last = None
            if last is not None:
                found["last_position"], found["next_sequence"] = str(last[0]), last[1] + 1
            subscriptions: list[dict[str, object]] = []
            why = ""
            try:
                async with aclosing(store.subscriptions(name, after=after)) as all_of_them:
                    async for each in all_of_them:
                        if len(subscriptions) == limit:
                            following = str(subscriptions[-1]["subscription"])
                            break
                        subscriptions.append(await _subscription_row(store, name, each))
            except (DamagedFile, NewerFormat) as error:
                # The rest of the subscriptions is not listed; the stream itself is.
                why = error.message
        return {**found, "subscriptions": subscriptions, "next": following, "why": why}

    async def segments(self, request: EndpointRequest) -> object:
        """A page of the segments of a stream with their ledgers; ``next``: the ``after`` of the next page."""
        name, after = request.path["stream"], request.count("after", 0, MAX_ID)
        limit = request.count("limit", PAGE, MAX_PAGE) or PAGE
        rows: list[dict[str, object]] = []
        following: int | None = None
        with self._stores.of(request.path["namespace"]) as store:
            async with aclosing(store.segments(name, after=after)) as found:
                async for each in found:
                    if len(rows) == limit:
                        following = after
                        break
                    rows.append(_segment_row(each))
                    after = each.number
        return {"segments": rows, "next": following}


def _segment_row(found: SegmentInfo) -> dict[str, object]:
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


async def _subscription_row(store: StreamStore, name: str, found: SubscriptionInfo) -> dict[str, object]:
    lag, why = None, ""
    try:
        if found.cursor is None:
            why = "the position of the subscription is lost: reset it"
        else:
            lag = await store.lag(name, found.cursor)
    except TallybookError as error:
        raise_defect(error)
        why = error.message
    return {
        "subscription": found.name,
        "cursor": None if found.cursor is None else str(found.cursor),
        "reader": found.reader,
        "lag_records": lag and lag.records,
        "lag_bytes": lag and lag.size_bytes,
        "lag_s": lag and round(lag.age_s, 1),
        "why": why,
    }


def _tail_row(found: StreamTail) -> dict[str, object]:
    return {
        "end_sequence": found.next_sequence,
        "largest_lag_records": found.lag,
        "subscriptions": found.subscriptions,
    }


def _name(request: EndpointRequest) -> str:
    """The name after which the requested page begins."""
    after = request.query.get("after", "")
    if len(after) > MAX_NAME_CHARS or not after.isprintable():
        raise InvalidArgument("after must be a name")
    return after


def stream_row(found: StreamInfo) -> dict[str, object]:
    """JSON of a stream."""
    return {
        "name": found.name,
        "namespace": found.namespace,
        "stream_id": found.stream_id,
        "created_at": _moment(found.created_at_ms),
        "first_sequence": found.first_sequence,
        "next_sequence": found.next_sequence,
        "segments": found.segments,
        "owner": found.owner,
        "ended": found.sealed,
        "policy": found.policy.model_dump(mode="json"),
        "last_position": None,
    }
