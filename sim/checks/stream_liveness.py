"""Stream checks after healing: each stream can be written, read and ended, and leaves nothing behind (S10, S11)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from tallybook.core.errors import NoSuchStream, StreamEnded, TallybookError
from tallybook.stream import Start, StreamStore
from tallybook.stream.position import TAG_CHARS, RecordAddress

from ..supervised_tasks import vital
from ..workload.ledgers import ClientProcess
from ..workload.stream_history import StreamReading
from ..workload.streams import Streaming
from .stream_check import check_streams

if TYPE_CHECKING:
    from ..run import Universe

LIVENESS_SECONDS: Final = 60.0
PAUSE_SECONDS: Final = 0.2
LAST_RECORDS: Final = 3


async def write_streams(universe: Universe) -> None:
    """Let a new client append to every stream and read what it committed."""
    streaming = universe.streaming
    if streaming is not None:
        await _in_time(universe, "stream-newcomer", "a stream cannot be written", _write_all(streaming))


async def end_streams(universe: Universe) -> None:
    """End every stream; its followers must see the end and the janitor must finish without orphan ledgers."""
    streaming = universe.streaming
    if streaming is None or streaming.all_ended:
        return
    streaming.all_ended = True
    await _in_time(universe, "stream-ender", "a stream cannot be ended", _write_all(streaming, end=True))

    def followed() -> bool:
        return not universe.workload.running("follower")

    await universe.until(followed, LIVENESS_SECONDS, "S11", "followers of streams do not reach the end")
    await _in_time(universe, "stream-keeper", "streams cannot be kept", _keep(universe))
    left = universe.stream_ledgers.unnamed()
    universe.oracle.expect(not left, "S10", f"no stream names ledgers {left}, which were made for one")
    doomed = universe.stream_ledgers.doomed()
    universe.oracle.expect(not doomed, "S10", f"ledgers {doomed} are doomed, and are not deleted")


async def audit_streams(universe: Universe) -> None:
    """Read every stream from its first to its last record and check the history (S1 to S9)."""
    streaming, oracle = universe.streaming, universe.oracle
    if streaming is None:
        return
    await _in_time(universe, "stream-auditor", "a stream cannot be read", _read_all(streaming))
    for tag, facts in streaming.history.facts_by_tag.items():
        there = facts.final is not None or streaming.history.deletions or not facts.writer_sessions
        oracle.expect(there, "S1", f"stream {tag} is gone, and it was not deleted")
    for violation in check_streams(streaming.history):
        oracle.violated(violation.invariant, violation.detail)


_Work = Callable[[ClientProcess, StreamStore], Awaitable[None]]


async def _in_time(universe: Universe, name: str, detail: str, work: _Work) -> None:
    """Let a client retry ``work`` until it succeeds; a violation after ``LIVENESS_SECONDS`` (S11)."""
    failed: list[TallybookError] = []
    async with universe.workload.extra_client(name) as client:

        async def run() -> None:
            while True:
                streams = StreamStore(client.client, name=name)
                try:
                    await work(client, streams)
                except TallybookError as error:
                    failed.append(error)
                    await universe.world.clock.sleep(PAUSE_SECONDS)
                else:
                    return
                finally:
                    await streams.close()

        working = client.process.spawn(run())
        vital(universe.oracle, working)
        deadline = universe.world.clock.monotonic() + LIVENESS_SECONDS
        while not working.done():
            if universe.world.clock.monotonic() > deadline:
                universe.oracle.violated("S11", f"{detail}: {failed[-1:]!r}")
                universe.oracle.raise_violations()
            await universe.world.clock.sleep(0.05)


def _write_all(streaming: Streaming, *, end: bool = False) -> _Work:
    done: set[str] = set()

    async def write_all(client: ClientProcess, streams: StreamStore) -> None:
        names = [name async for name in streams.list()]
        if not names:
            await streaming.create(client, streams, "s0")
            names = ["s0"]
        for name in names:
            if name not in done:
                await _write(streaming, client, streams, name, end=end)
                done.add(name)

    return write_all


async def _write(streaming: Streaming, client: ClientProcess, streams: StreamStore, name: str, *, end: bool) -> None:
    """Append some records, check that a new reader sees them at once, then close the writer or end the stream."""
    asked_at = streaming.clock.monotonic()
    try:
        writer = await streams.writer(name)
    except StreamEnded:
        return
    except NoSuchStream:
        # Finish a deletion that was interrupted.
        await streams.delete(name)
        return
    facts = streaming.history.facts_of(writer.stream_id[:TAG_CHARS])
    streaming.oracle.expect(not facts.ended, "S4", f"stream {name} has ended, and has a writer again")
    session = streaming.history.writer_session(client.name, facts.tag, asked_at)
    places: list[RecordAddress] = []
    for number in range(LAST_RECORDS):
        attempt = session.append(b"%s/%d/%d" % (client.name.encode(), session.number, number))
        position = await writer.append(attempt.payload, key=attempt.key)
        attempt.ok(position.place)
        places.append(position.place)
    await writer.commit()
    reading = await _read(streaming, client, streams, name)
    seen = {record.place for record in reading.records}
    missing = [place for place in places if place not in seen]
    streaming.oracle.expect(not missing, "S1", f"committed records {missing} of stream {name} are not read")
    if end:
        await writer.seal()
        facts.ended = True
    else:
        await writer.close()


async def _read(streaming: Streaming, client: ClientProcess, streams: StreamStore, name: str) -> StreamReading:
    reading = streaming.history.reading(client.name, Start.earliest())
    reader = streams.reader(name, follow=False, gaps="yield")
    async for batch in reader.batches():
        reading.saw(batch)
    return reading


def _keep(universe: Universe) -> _Work:
    """Janitor passes until two had nothing left to do."""

    async def keep(_client: ClientProcess, streams: StreamStore) -> None:
        rounds = 0
        while rounds < 2:
            rounds = rounds + 1 if not await streams.keep() else 0
            await universe.world.clock.sleep(PAUSE_SECONDS)

    return keep


def _read_all(streaming: Streaming) -> _Work:
    async def read_all(client: ClientProcess, streams: StreamStore) -> None:
        async for name in streams.list():
            try:
                reading = await _read(streaming, client, streams, name)
                info = await streams.info(name)
            except NoSuchStream:
                continue
            facts = streaming.history.facts_of(info.stream_id[:TAG_CHARS])
            reading.tag = facts.tag
            facts.final, facts.first_sequence = reading, info.first_sequence
            if reading.records:
                last = reading.records[-1].sequence
                same = last + 1 == info.next_sequence
                detail = f"stream {name} ends with record {last}, and its next one is {info.next_sequence}"
                streaming.oracle.expect(same, "S1", detail)
            for subscription in [each.name async for each in streams.subscriptions(name)]:
                handle = await streams.subscribe(name, subscription)
                advances = facts.advances(subscription)
                problem = "" if facts.deleted else advances.problem(advances.promised(), handle.cursor)
                await handle.close()
                streaming.oracle.expect(not problem, "S9", f"in the end subscription {subscription} {problem}")

    return read_all
