"""One seed is one run in every process: loop, disk and network together, under different hash seeds."""

import asyncio
import hashlib
import os
import subprocess
import sys

from tallybook.core.errors import BookieUnavailable, DiskFailed
from tallybook.core.limits import BLOCK_BYTES
from tallybook.runtime.deterministic import Latency, SimClock, SimDisk, SimNet, World, run_seed
from tallybook.runtime.disk import DiskFile, PlannedWrite
from tallybook.runtime.transport import Lane, MessageStream

SEEDS = range(5)
NODES = ("alpha", "beta", "gamma")


class Journal:
    """Group commit on a pump: answers a message when the block that holds it is durable."""

    def __init__(self, disk: SimDisk, file: DiskFile) -> None:
        self.file = file
        self.queue: list[tuple[bytes, asyncio.Future[bool]]] = []
        self.block = 0
        self.buffer = disk.buffer(BLOCK_BYTES)
        self.pump = disk.pump(self, name="journal")

    def append(self, message: bytes) -> asyncio.Future[bool]:
        durable: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.queue.append((message, durable))
        self.pump.kick()
        return durable

    def take(self) -> PlannedWrite | None:
        if not self.queue:
            return None
        taken, self.queue = self.queue[:10], self.queue[10:]
        digest = hashlib.sha256(b"".join(message for message, _ in taken)).digest()
        self.buffer[: len(digest)] = digest
        self.block += 1
        return PlannedWrite(self.file, self.block % 4 * BLOCK_BYTES, self.buffer, taken)

    def done(self, write: PlannedWrite) -> None:
        for _, durable in write.token:  # type: ignore[attr-defined]
            if not durable.done():
                durable.set_result(True)

    def failed(self, write: PlannedWrite | None, error: Exception) -> None:
        raise error


async def serve(world: World, net: SimNet, disk: SimDisk, name: str) -> None:
    await disk.make_directory("/data")
    journal = Journal(disk, await disk.open("/data/journal", create=True, durable=True))
    await disk.sync_directory("/data")

    async def accept(_lane: Lane, stream: MessageStream) -> None:
        while (message := await stream.receive()) is not None:
            if await journal.append(message):
                await stream.send(b"durable " + message)

    await net.transport(name).listen(name, accept)
    world.note("serves", name)


async def ask(world: World, net: SimNet, name: str, client: str) -> None:
    clock = SimClock(rng=world.rng.fork(client), noise=0.5)
    for attempt in range(12):
        try:
            stream = await net.transport(client).connect(name, Lane.ADD, timeout_seconds=1)
            for index in range(8):
                await stream.send(f"{client} {attempt} {index}".encode())
                async with asyncio.timeout(2):
                    world.note(client, await stream.receive())
            await stream.close()
        except (BookieUnavailable, TimeoutError) as error:
            world.note(client, type(error).__name__)
        await clock.sleep(0.05)


async def nemesis(world: World, net: SimNet, disks: dict[str, SimDisk]) -> None:
    rng = world.rng.fork("nemesis")
    for _ in range(15):
        await SimClock().sleep(rng.random() * 0.1)
        name = NODES[rng.randint(0, 2)]
        match rng.randint(0, 3):
            case 0:
                net.kill(name)
                disks[name].crash(rng)
                world.note("state", disks[name].state.digest().hex())
                try:
                    await serve(world, net, disks[name], name)
                except DiskFailed as error:
                    world.note("boot", error)
            case 1:
                net.clog("client 0", name, rng.random())
            case 2:
                net.reset(name, "client 1")
            case _:
                net.cut(name, "client 2")
                world.loop.call_later(0.2, net.heal, name, "client 2")


async def scenario(world: World) -> None:
    net = SimNet(world.rng.fork("net"))
    disks = {name: SimDisk(world.rng.fork(name), latency=Latency(), name=name) for name in NODES}
    for name, disk in disks.items():
        await serve(world, net, disk, name)
    async with asyncio.TaskGroup() as group:
        group.create_task(nemesis(world, net, disks))
        for index, name in enumerate(NODES * 2):
            group.create_task(ask(world, net, name, f"client {index}"))


def digests() -> list[str]:
    return [run_seed(seed, scenario).digest for seed in SEEDS]


def test_seeds_give_the_same_traces_in_two_processes_with_different_hash_seeds() -> None:
    outputs = []
    for hash_seed in ("1", "2"):
        result = subprocess.run(
            [sys.executable, __file__],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True, text=True, check=True, timeout=120,
        )  # fmt: skip
        outputs.append(result.stdout.split())
    assert outputs[0] == outputs[1] == digests()
    assert len(set(outputs[0])) == len(SEEDS)


def test_the_comparison_would_notice_a_message_that_differs_in_one_byte() -> None:
    def digest(last: bytes) -> str:
        async def talk(world: World) -> None:
            net = SimNet(world.rng)

            async def accept(_lane: Lane, stream: MessageStream) -> None:
                await stream.receive()

            await net.transport("a").listen("a", accept)
            stream = await net.transport("b").connect("a", Lane.ADD, timeout_seconds=1)
            await stream.send(b"message" + last)
            await stream.receive()

        return run_seed(1, talk).digest

    assert digest(b"a") == digest(b"a")
    assert digest(b"a") != digest(b"b")


def test_the_comparison_would_notice_a_write_that_differs_in_one_byte() -> None:
    def digest(last: bytes) -> str:
        async def write(world: World) -> None:
            disk = SimDisk()
            file = await disk.open("/f", create=True)
            await file.write(0, [b"block" + last])

        return run_seed(1, write).digest

    assert digest(b"a") != digest(b"b")


if __name__ == "__main__":
    print("\n".join(digests()))
