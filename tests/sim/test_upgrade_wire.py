"""Recorded messages of earlier releases: the present bookie answers recorded clients, and the present client accepts
answers of recorded bookies.

tests/fixtures has one recording per release with every kind of request (``sim/upgrade/wire_play.py``).
"""

import asyncio
import json
from base64 import b64decode
from collections import defaultdict
from pathlib import Path

import pytest

from tallybook.bookie.ledgers.confirmed_prefix import ConfirmedPrefix
from tallybook.bookie.rpc.service import BookieService
from tallybook.client.background import client_tasks
from tallybook.client.connection.connection import open_bookie
from tallybook.client.load import ClientLoad
from tallybook.core.answers import BookieStatus, CopyTrace, HeldAnswer, HeldLedgers, Incarnation
from tallybook.core.errors import TallybookError
from tallybook.core.ids import NO_IDENTITY
from tallybook.core.settings import BookieSettings, ClientSettings
from tallybook.runtime.tasks import Tasks
from tallybook.sim.deterministic import SimDisk, SimNet, World
from tallybook.sim.stage.disk_bookie import DiskBookie, KnownMetadata, tiny_settings
from tallybook.sim.upgrade.fixture import WIRE_SUFFIX
from tallybook.sim.upgrade.wire_play import CLIENT_ID, NAMES, PER_BATCH, SETTLED, SETTLED_BATCHES, play
from tallybook.wire import messages as wire
from tallybook.wire.lanes import Lane
from tallybook.wire.versions import SPOKEN

from ..simulated import on_stage, world_alone

FIXTURES = Path(__file__).parents[1] / "fixtures"
RELEASES = sorted(path.name.removesuffix(WIRE_SUFFIX) for path in FIXTURES.glob(f"*{WIRE_SUFFIX}"))
ANSWER_SECONDS = 30


class Recording:
    """One recorded conversation."""

    def __init__(self, name: str) -> None:
        found = json.loads((FIXTURES / f"{name}{WIRE_SUFFIX}").read_text())
        self.events = [(stream, Lane(lane), who, b64decode(said)) for stream, lane, who, said in found["events"]]
        self.results, self.ids, self.key = found["results"], found["ledgers"], bytes.fromhex(found["key"])
        self.verifiers = {self.ids[name]: bytes.fromhex(found["verifiers"][name]) for name in NAMES}
        self.bookie_id, self.cluster_id = found["bookie"]["id"], found["cluster"]
        self.life = Incarnation(found["bookie"]["directory_uuid"], found["bookie"]["boot"])


def test_every_release_with_files_has_a_conversation():
    assert [path.name.removesuffix(".tar.xz") for path in sorted(FIXTURES.glob("*.tar.xz"))] == RELEASES != []


# --- their bookie, our client -----------------------------------------------------------------------------------------


class RecordedStream:
    """A stream to a recorded bookie: it replays each message when the client has sent as many as in the recording."""

    def __init__(self, lane: Lane, said: list[tuple[str, bytes]]) -> None:
        self.peer = "recorded"
        self._lane = lane
        self._said = said
        self._client_said = 0
        self._bookie_said = 0
        self._more = asyncio.Event()
        self.theirs: list[bytes] = [message for who, message in said if who == "client"]

    async def send(self, message: bytes) -> None:
        expected = self.theirs[self._client_said]
        assert meaning(self._lane, "client", self._client_said, message) == meaning(
            self._lane, "client", self._client_said, expected
        )
        self._client_said += 1
        self._more.set()

    async def receive(self) -> bytes | None:
        places = [at for at, (who, _) in enumerate(self._said) if who == "bookie"]
        while True:
            if self._bookie_said < len(places):
                at = places[self._bookie_said]
                if self._client_said >= sum(who == "client" for who, _ in self._said[:at]):
                    self._bookie_said += 1
                    return self._said[at][1]
            self._more.clear()
            await self._more.wait()

    async def close(self) -> None:
        assert self._client_said == len(self.theirs), "the client has less to say than it had"

    def abort(self) -> None:
        pass


class RecordedTransport:
    """A transport to a recorded bookie."""

    def __init__(self, recording: Recording) -> None:
        found: dict[Lane, dict[int, list[tuple[str, bytes]]]] = defaultdict(lambda: defaultdict(list))
        for stream, lane, who, message in recording.events:
            found[lane][stream].append((who, message))
        self._streams = {lane: iter(streams.values()) for lane, streams in found.items()}

    async def connect(self, address: str, lane: Lane, *, timeout_seconds: float) -> RecordedStream:
        return RecordedStream(lane, next(self._streams[lane]))


@pytest.mark.parametrize("name", RELEASES)
@on_stage(world_alone, deadline_seconds=600)
async def test_the_client_makes_of_what_bookies_of_earlier_releases_answer_what_their_clients_made_of_it(
    world: World, *, name
) -> None:
    recording = Recording(name)
    transport, tasks = RecordedTransport(recording), client_tasks("play")

    async def open_connection(boot: int = recording.life.boot, cluster_id: str = recording.cluster_id):
        return await open_bookie(
            transport, "recorded", bookie_id=recording.bookie_id, expected=recording.life._replace(boot=boot),
            settings=ClientSettings(), tasks=tasks, cluster_id=cluster_id, client_id=CLIENT_ID,
            load=ClientLoad(world.clock),
        )  # fmt: skip

    async def settle() -> None:
        """The ledger is closed already in the recording."""

    assert await play(open_connection, recording.ids, recording.key, settle) == recording.results
    await tasks.close()


# --- their client, our bookie -----------------------------------------------------------------------------------------


class Relived:
    """A bookie with the identity of another one."""

    def __init__(self, bookie, recording: Recording) -> None:
        self._bookie = bookie
        self.bookie_id, self.incarnation = recording.bookie_id, recording.life

    def __getattr__(self, name: str):
        return getattr(self._bookie, name)


def meaning(lane: Lane, who: str, number: int, message: bytes) -> object:
    """The content of a message without fields that differ in each run."""
    if who == "client":
        if number == 0:
            return wire.decode_hello(message)
        if lane is Lane.ADD:
            adds = wire.decode_adds(message)
            return adds.attaches, [bytes(batch) for batch in adds.batches]
        return wire.decode_request(message)
    if number == 0:
        try:
            welcome = wire.decode_welcome(message)
        except TallybookError as error:
            return type(error)
        return welcome.protocol_version, welcome.bookie_id, welcome.incarnation
    if lane is Lane.ADD:
        return wire.decode_acks(message)
    reply = wire.decode_reply(message)
    if isinstance(reply.outcome, Exception):
        return reply.request_id, type(reply.outcome)
    if isinstance(reply.outcome, BookieStatus):
        return reply.request_id, reply.outcome.read_only
    if isinstance(reply.outcome, HeldAnswer):
        # Not sent by the first release.
        return reply.request_id, reply.outcome._replace(writer=None)
    if isinstance(reply.outcome, HeldLedgers):
        # Identities come from the metadata, which are others here.
        ledgers = tuple(each._replace(identity=NO_IDENTITY) for each in reply.outcome.ledgers)
        return reply.request_id, reply.outcome._replace(ledgers=ledgers)
    if isinstance(reply.outcome, CopyTrace):
        return reply.request_id, reply.outcome._replace(places=())
    if hasattr(reply.outcome, "batches"):
        batches = [bytes(batch) if not isinstance(batch, tuple) else batch for batch in reply.outcome.batches]
        return reply.request_id, reply.outcome._replace(batches=batches)
    return reply.request_id, reply.outcome


@pytest.mark.parametrize("name", RELEASES)
@on_stage(world_alone, deadline_seconds=600)
async def test_the_bookie_answers_clients_of_earlier_releases_as_their_bookies_did(world: World, *, name) -> None:
    recording = Recording(name)
    settled = {recording.ids[SETTLED]: ConfirmedPrefix(SETTLED_BATCHES * PER_BATCH - 1, closed=True)}
    metadata = KnownMetadata(verifiers=recording.verifiers, confirmed_prefixes=settled)
    node = DiskBookie(SimDisk(world.rng), world.clock, metadata, tiny_settings())
    failures: list[str] = []
    tasks = Tasks("service", lambda task, error: failures.append(f"{task}: {error!r}"))
    store = Relived(await node.boot(), recording)
    settings = BookieSettings(data_directory="/nowhere", metadata="memory:")
    service = BookieService(store, settings, world.clock, tasks, recording.cluster_id, failures.append)
    net = SimNet(world.rng.fork("net"))
    listener = await net.transport("bookie").listen("bookie:1", service.accept)
    streams, heard = {}, defaultdict(int)
    for number, lane, who, message in recording.events:
        if number not in streams:
            transport = net.transport("client")
            streams[number] = await transport.connect("bookie:1", lane, timeout_seconds=1.0)
        at = heard[number, who]
        heard[number, who] += 1
        if who == "client":
            await streams[number].send(message)
            continue
        async with asyncio.timeout(ANSWER_SECONDS):
            found = await streams[number].receive()
        assert meaning(lane, who, at, found) == meaning(lane, who, at, message), f"stream {number}, message {at}"
    for stream in streams.values():
        await stream.close()
    await world.clock.sleep(10)
    await listener.close(0)
    await tasks.close()
    await node.stop()
    assert failures == node.failures == []


def test_the_first_version_of_the_protocol_is_still_spoken():
    assert SPOKEN.oldest == 1
