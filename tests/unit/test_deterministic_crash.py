"""The crash enumerator finds what a careless writer loses, and passes a careful one."""

import zlib

import pytest

from tallybook.core.errors import InvalidArgument
from tallybook.core.limits import BLOCK_BYTES
from tallybook.runtime.deterministic import CrashFound, CrashOptions, Promises, SimDisk, enumerate_crashes
from tallybook.runtime.disk import DiskFile

RECORD_BYTES = 700


async def open_log(disk: SimDisk, *, sync_name: bool = True) -> DiskFile:
    await disk.make_directory("/d")
    file = await disk.open("/d/log", create=True)
    if sync_name:
        await disk.sync_directory("/d")
    return file


def record(number: int) -> bytes:
    body = bytes([number]) * (RECORD_BYTES - 4)
    return zlib.crc32(body).to_bytes(4, "big") + body


async def read_log(file: DiskFile) -> list[int]:
    """Numbers of the good records up to the first bad one."""
    data = await file.read(0, 1 << 20)
    found = []
    for at in range(0, len(data) - RECORD_BYTES + 1, RECORD_BYTES):
        crc, body = data[at : at + 4], data[at + 4 : at + RECORD_BYTES]
        if zlib.crc32(body).to_bytes(4, "big") != crc:
            break
        found.append(body[0])
    return found


class Writer:
    """Appends records; ``fault`` plants one mistake."""

    def __init__(self, fault: str = "", records: int = 12) -> None:
        self.fault = fault
        self.records = records

    async def __call__(self, disk: SimDisk, promises: Promises) -> None:
        file = await open_log(disk, sync_name=self.fault != "name not synced")
        for number in range(self.records):
            if self.fault == "ack before sync":
                await file.write(number * RECORD_BYTES, [record(number)])
                promises.add(number)
                await file.sync()
                continue
            await file.write(number * RECORD_BYTES, [record(number)])
            if self.fault != "never synced":
                await file.sync()
            promises.add(number)


async def check(disk: SimDisk, promises: tuple[object, ...]) -> None:
    file = await open_log(disk)
    found = await read_log(file)
    assert found == list(range(len(found))), "records out of order"
    assert set(promises) <= set(found), f"promised {promises}, found {found}"
    await file.truncate(len(found) * RECORD_BYTES)
    await file.sync()


def test_a_careful_writer_loses_nothing_in_any_power_loss() -> None:
    report = enumerate_crashes(Writer(), check)
    assert report.failures == []
    assert report.points > 60
    assert report.checked > 150
    assert report.states > report.checked


@pytest.mark.parametrize("fault", ["never synced", "name not synced", "ack before sync"])
def test_each_planted_mistake_is_found_and_can_be_replayed_alone(fault: str) -> None:
    with pytest.raises(CrashFound) as caught:
        enumerate_crashes(Writer(fault), check, max_failures=2)
    names = [
        line.strip()[len("only=") :] for line in str(caught.value).splitlines() if line.strip().startswith("only=")
    ]
    assert len(names) == 2
    for name in names:
        only = name.strip("'\"")
        with pytest.raises(CrashFound, match="1 of 1 crash states") as again:
            enumerate_crashes(Writer(fault), check, only=only)
        assert isinstance(again.value.__cause__, AssertionError)


def test_a_state_that_is_fine_can_be_replayed_alone_too() -> None:
    report = enumerate_crashes(Writer(), check, only="0 in mkdir /d: nothing pending survives")
    assert report.checked == 1


def test_a_state_that_does_not_exist_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="no crash state is called 'nonsense'"):
        enumerate_crashes(Writer(), check, only="nonsense")


def test_a_boot_that_fails_is_a_failure_whatever_it_raises() -> None:
    async def boots_never(disk: SimDisk, promises: tuple[object, ...]) -> None:
        raise KeyError("no superblock")

    with pytest.raises(CrashFound, match="3 of 3") as caught:
        enumerate_crashes(Writer(), boots_never)
    assert isinstance(caught.value.__cause__, KeyError)


def test_a_boot_that_hangs_is_a_failure() -> None:
    async def hangs(disk: SimDisk, promises: tuple[object, ...]) -> None:
        disk.fail("open", error=None, delay_seconds=10_000)
        await disk.open("/d/log")

    with pytest.raises(CrashFound, match="Stuck"):
        enumerate_crashes(
            Writer(records=1), hangs, max_failures=1, deadline_seconds=100, only="11 end: nothing pending survives"
        )


def test_every_distinct_pair_of_disk_and_promises_is_checked_once() -> None:
    seen: list[tuple[bytes, int]] = []

    async def remember(disk: SimDisk, promises: tuple[object, ...]) -> None:
        seen.append((disk.state.digest(), len(promises)))

    report = enumerate_crashes(Writer(), remember)
    assert len(seen) == len(set(seen)) == report.checked
    assert {promised for _, promised in seen} == set(range(13))


def test_the_same_seed_tries_the_same_states() -> None:
    def tried(seed: int) -> list[bytes]:
        digests: list[bytes] = []

        async def remember(disk: SimDisk, promises: tuple[object, ...]) -> None:
            digests.append(disk.state.digest())

        enumerate_crashes(Writer(), remember, seed=seed, options=CrashOptions(tear_points=1))
        return digests

    assert tried(1) == tried(1)
    assert tried(1) != tried(2)


def test_a_recovery_that_is_only_safe_once_is_found_by_a_second_crash() -> None:
    """The check below clears the log before it rewrites it: right, unless power fails in between."""

    async def rewrites(disk: SimDisk, promises: tuple[object, ...]) -> None:
        file = await open_log(disk)
        found = await read_log(file)
        assert set(promises) <= set(found)
        await file.truncate(0)
        await file.sync()
        await file.write(0, [record(number) for number in found])
        await file.sync()

    assert enumerate_crashes(Writer(), rewrites).failures == []
    with pytest.raises(CrashFound) as caught:
        enumerate_crashes(Writer(), rewrites, double_crashes=500, max_failures=1)
    name = str(caught.value).split("only=")[1].splitlines()[0].strip("'")
    assert " >> " in name
    with pytest.raises(CrashFound, match="1 of 1"):
        enumerate_crashes(Writer(), rewrites, only=name)


def test_second_crashes_stay_within_their_limit() -> None:
    async def appends(disk: SimDisk, promises: tuple[object, ...]) -> None:
        file = await open_log(disk)
        await file.write(await file.size(), [b"booted"])
        await file.sync()

    report = enumerate_crashes(Writer(), appends, double_crashes=70)
    assert report.doubles == 70


def test_a_workload_may_start_on_a_disk_that_is_not_empty() -> None:
    prepared: list[SimDisk] = []

    async def prepare(disk: SimDisk, promises: Promises) -> None:
        await Writer(records=2)(disk, promises)
        prepared.append(disk.fork())

    enumerate_crashes(prepare, check)

    async def go_on(disk: SimDisk, promises: Promises) -> None:
        file = await disk.open("/d/log")
        assert await read_log(file) == [0, 1]
        promises.add(0)
        promises.add(1)
        await file.write(2 * RECORD_BYTES, [record(2)])
        await file.sync()
        promises.add(2)

    assert enumerate_crashes(go_on, check, disk=prepared[0]).checked > 5


def test_five_thousand_states_are_tried_in_reasonable_time() -> None:
    async def blocks(disk: SimDisk, promises: Promises) -> None:
        await disk.make_directory("/d")
        file = await disk.open("/d/log", create=True, durable=True)
        await disk.sync_directory("/d")
        for number in range(180):
            await file.write(number % 16 * BLOCK_BYTES, [number.to_bytes(2, "big") * (BLOCK_BYTES // 2)])
            promises.add(number)

    async def boots(disk: SimDisk, promises: tuple[object, ...]) -> None:
        if promises:
            file = await disk.open("/d/log")
            assert (await file.read(0, 2)) != b""

    report = enumerate_crashes(blocks, boots)
    assert report.checked > 5000
