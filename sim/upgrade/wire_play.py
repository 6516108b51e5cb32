"""Makes every kind of request to one bookie and records all messages. A program; see the package.

    python -P wire_play.py METADATA BOOKIE

It talks to a real bookie and prints one JSON line: each message of each stream in order, and the results that the
client got. It makes one request at a time, so that the order is deterministic.

Tests also run ``play`` against recorded bookies, and replay the messages of recorded clients to the present bookie; see
tests/sim/test_upgrade_wire.py.
"""

from __future__ import annotations

import asyncio
import json
import sys
from base64 import b64encode
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from tallybook.client import Client
from tallybook.client.background import client_tasks
from tallybook.client.connection.connection import BookieRpc, open_bookie
from tallybook.client.load import ClientLoad
from tallybook.core.answers import AddAnswer, Incarnation
from tallybook.core.batch import encode_batch
from tallybook.core.buffers import ReceivedMessage
from tallybook.core.errors import TallybookError
from tallybook.core.keys import ledger_key
from tallybook.core.settings import ClientSettings
from tallybook.metadata.ledger.model import close
from tallybook.runtime.clock import RealClock
from tallybook.runtime.grpc.stream_client import GrpcTransport
from tallybook.runtime.transport import MessageStream
from tallybook.wire.bookie_transport import SERVICE
from tallybook.wire.lanes import Lane

PLAIN, LOCKED, DEFERRED, SETTLED, UNUSED = "plain", "locked", "deferred", "settled", "unused"
NAMES: Final = (PLAIN, LOCKED, DEFERRED, SETTLED, UNUSED)
PASSWORD: Final = b"correct horse"
PER_BATCH: Final = 5
SETTLED_BATCHES: Final = 3
CLIENT_ID: Final = "an earlier version"
WRONG_KEY: Final = bytes(32)

Open = Callable[..., Awaitable[BookieRpc]]
"""Connects to the bookie; keyword arguments override fields of the hello."""


def batch_of(ledger_id: int, number: int, text: bytes = b"entry") -> bytes:
    """Batch ``number`` of a ledger, always with the same bytes."""
    first = number * PER_BATCH
    entries = [text + b" %d" % entry for entry in range(first, first + PER_BATCH)]
    return encode_batch(ledger_id, first, entries, lac=first - 1, ledger_length=1000 * (number + 1), written_at_us=17)


async def added(connection: BookieRpc, batch: bytes, key: bytes = b"", *, deferred: bool = False) -> AddAnswer:
    """Add a batch and return the answer."""
    answer: asyncio.Future[AddAnswer] = asyncio.get_running_loop().create_future()
    connection.add(batch, key, answer.set_result, deferred=deferred)
    return await answer


class Notes:
    """Results of all requests."""

    def __init__(self) -> None:
        self.taken: list[list[Any]] = []

    async def take(self, what: str, asking: Awaitable[object], select: Callable[[Any], object] | None = None) -> None:
        """Await a request and record its result, or the class of its error.

        Args:
            select: selects the part of the result to record.
        """
        try:
            found = await asking
        except TallybookError as error:
            self.taken.append([what, type(error).__name__])
        else:
            self.taken.append([what, plain(select(found) if select else found)])


def plain(value: object) -> Any:
    """Convert a result to JSON types."""
    if isinstance(value, bytes | memoryview | bytearray):
        return bytes(value).hex()
    if isinstance(value, tuple | list):
        return [plain(each) for each in value]
    return value


async def play(
    open_connection: Open, ids: Mapping[str, int], key: bytes, settle: Callable[[], Awaitable[None]]
) -> list[list[Any]]:
    """Make all requests to an empty bookie, one after the other.

    Args:
        ids: ids of the ledgers, by ``NAMES``; ``LOCKED`` has a password.
        key: ledger key of ``LOCKED``.
        settle: closes ``SETTLED`` in the metadata when it is called.

    Returns:
        The results.
    """
    notes = Notes()
    connection = await open_connection()
    await adds(connection, notes, ids, key)
    await reads(connection, notes, ids[PLAIN], ids[UNUSED])
    await settle()
    await repair(connection, notes, ids)
    await recovery(connection, notes, ids, key)
    await connection.close()
    for what, change in (("another life", {"boot": 99}), ("another cluster", {"cluster_id": "another"})):
        await notes.take(what, open_connection(**change), select=lambda found: found.bookie_id)
    return notes.taken


async def adds(connection: BookieRpc, notes: Notes, ids: Mapping[str, int], key: bytes) -> None:
    """Adds that are acked, and some that are refused."""
    for number in range(4):
        await notes.take("add", added(connection, batch_of(ids[PLAIN], number)))
    await notes.take("add again", added(connection, batch_of(ids[PLAIN], 1)))
    await notes.take("add other bytes", added(connection, batch_of(ids[PLAIN], 1, b"other")))
    await notes.take("add with a wrong key", added(connection, batch_of(ids[LOCKED], 0), WRONG_KEY))
    await notes.take("add with the key", added(connection, batch_of(ids[LOCKED], 0), key))
    await notes.take("add deferred", added(connection, batch_of(ids[DEFERRED], 0), deferred=True))
    await notes.take("force", connection.force(ids[DEFERRED], b""))
    for number in range(SETTLED_BATCHES):
        await notes.take("add", added(connection, batch_of(ids[SETTLED], number)))


async def reads(connection: BookieRpc, notes: Notes, ledger_id: int, unused: int) -> None:
    """Reads of existing and of missing entries."""
    await notes.take("read", connection.read_batches(ledger_id, 0, 3 * PER_BATCH - 1, 1 << 20))
    await notes.take("read a part", connection.read_batches(ledger_id, PER_BATCH + 1, PER_BATCH + 1, 1))
    await notes.take("read beyond", connection.read_batches(ledger_id, 1000, 1001, 1000))
    await notes.take(
        "read an entry",
        connection.read_entry(ledger_id, 3),
        lambda found: (found.entry_id, found.payload, found.payload_crc, found.written_at_us, found.lac),
    )
    await notes.take("read an entry beyond", connection.read_entry(ledger_id, 1000))
    await notes.take("read of nothing", connection.read_batches(unused, 0, 1, 1000))
    await notes.take("LAC", connection.read_lac(ledger_id))
    await notes.take("LAC of nothing", connection.read_lac(unused))
    await notes.take("write the LAC", connection.write_lac(ledger_id, 4 * PER_BATCH - 1, b""))
    await notes.take("wait for the LAC", connection.wait_lac(ledger_id, 0, 50))
    await notes.take("wait for the LAC and more", connection.wait_lac(ledger_id, PER_BATCH - 1, 50, 1 << 16))
    await notes.take("wait in vain", connection.wait_lac(ledger_id, 1000, 50))


async def repair(connection: BookieRpc, notes: Notes, ids: Mapping[str, int]) -> None:
    """Requests of repair and inspection."""
    await notes.take("repair", connection.repair_add(batch_of(ids[SETTLED], 1)))
    await notes.take("repair what is open", connection.repair_add(batch_of(ids[PLAIN], 0)))
    await notes.take(
        "held",
        connection.held(ids[PLAIN], 0, 1000),
        # Fields that exist since the first release.
        lambda found: (found.ranges, found.looked_up_to, found.limbo),
    )
    await notes.take("damaged", connection.damaged((-1, -1), 10))
    await notes.take(
        "held ledgers",
        connection.held_ledgers(-1, 10),
        # Fields that exist since the first release.
        lambda found: ([(each.ledger_id, each.fenced, each.limbo) for each in found.ledgers], found.complete),
    )
    await notes.take("end of limbo", connection.end_limbo(ids[SETTLED]))
    await notes.take("end of limbo of an open one", connection.end_limbo(ids[PLAIN]))
    await notes.take("status", connection.status(), lambda found: (found.read_only, found.damaged_batches))
    await notes.take(
        "trace",
        connection.trace(ids[PLAIN], 7),
        lambda found: (found.verdict, found.first_entry_id, found.last_entry_id, found.batch_crc, found.lac),
    )


async def recovery(connection: BookieRpc, notes: Notes, ids: Mapping[str, int], key: bytes) -> None:
    """Fences, and adds and reads after them."""
    await notes.take("recovery read", connection.recovery_read(ids[PLAIN], 2 * PER_BATCH, b""))
    await notes.take("recovery read beyond", connection.recovery_read(ids[PLAIN], 4 * PER_BATCH, b""))
    await notes.take("add behind a fence", added(connection, batch_of(ids[PLAIN], 4)))
    await notes.take("recovery add", connection.recovery_add(batch_of(ids[PLAIN], 4), b""))
    await notes.take("fence with a wrong key", connection.fence(ids[LOCKED], WRONG_KEY))
    await notes.take("fence", connection.fence(ids[LOCKED], key))
    await notes.take("fence of nothing", connection.fence(ids[UNUSED], b""))
    await notes.take("LAC of a fenced one", connection.read_lac(ids[PLAIN]))


# --- recording --------------------------------------------------------------------------------------------------------


class _RecordingStream:
    """A stream that records every message."""

    def __init__(self, stream: MessageStream, lane: Lane, number: int, events: list[list[Any]]) -> None:
        self._stream = stream
        self._events = events
        self._number, self._lane = number, lane
        self.peer = stream.peer
        self.presented = stream.presented
        self.close = stream.close
        self.abort = stream.abort

    def _note(self, who: str, message: ReceivedMessage) -> None:
        self._events.append([self._number, self._lane.value, who, b64encode(message).decode()])

    async def send(self, message: bytes) -> None:
        """Record a message and send it."""
        self._note("client", message)
        await self._stream.send(message)

    async def receive(self) -> ReceivedMessage | None:
        """Receive a message and record it."""
        message = await self._stream.receive()
        if message is not None:
            self._note("bookie", message)
        return message


class RecordingTransport(GrpcTransport):
    """Real streams that record every message in ``events``: stream number, lane, sender, message in base64."""

    def __init__(self) -> None:
        super().__init__(SERVICE, tuple(Lane))
        self.events: list[list[Any]] = []
        self._opened = 0

    async def connect(self, address: str, kind: str, *, timeout_seconds: float) -> MessageStream:
        """Open a recording stream."""
        self._opened += 1
        number = self._opened
        stream = await super().connect(address, kind, timeout_seconds=timeout_seconds)
        return _RecordingStream(stream, Lane(kind), number, self.events)


async def record(client: Client, bookie_id: str) -> dict[str, Any]:
    """Run ``play`` against a real bookie; return everything that a replay needs."""
    bookie = (await client.bookies())[bookie_id]
    ids, key, verifiers = {}, b"", {}
    for name in NAMES:
        made = await client.create_unowned_ledger(
            ensemble=1, write_quorum=1, ack_quorum=1, password=PASSWORD if name == LOCKED else b""
        )
        ids[name], verifiers[name] = made.ledger_id, made.key_verifier.hex()
        key = ledger_key(PASSWORD, made.key_salt) if name == LOCKED else key
    transport, tasks, cluster_id = RecordingTransport(), client_tasks("play"), await client.world.store.cluster_id()

    async def open_connection(boot: int = bookie.incarnation.boot, cluster_id: str = cluster_id) -> BookieRpc:
        return await open_bookie(
            transport,
            bookie.address,
            bookie_id=bookie_id,
            expected=Incarnation(bookie.incarnation.directory_uuid, boot),
            settings=ClientSettings(),
            tasks=tasks,
            cluster_id=cluster_id,
            client_id=CLIENT_ID,
            load=ClientLoad(RealClock()),
        )

    async def settle() -> None:
        found = await client.world.store.read_ledger(ids[SETTLED], linearizable=True)
        last = SETTLED_BATCHES * PER_BATCH - 1
        await client.world.store.update_ledger(close(found.value, last, 1000 * SETTLED_BATCHES), found.version)

    results = await play(open_connection, ids, key, settle)
    await tasks.close()
    return {
        "bookie": {
            "id": bookie_id,
            "directory_uuid": bookie.incarnation.directory_uuid,
            "boot": bookie.incarnation.boot,
        },
        "cluster": cluster_id,
        "ledgers": ids,
        "verifiers": verifiers,
        "key": key.hex(),
        "results": results,
        "events": transport.events,
    }


async def main(metadata: str, bookie_id: str) -> None:
    """Record and print the result."""
    async with Client(metadata) as client:
        print(json.dumps(await record(client, bookie_id)), flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
