"""The crash enumerator finds the losses of a faulty writer, and accepts a correct one."""

import zlib

import pytest

from tallybook.core.errors import InvalidArgument
from tallybook.runtime.disk.port import DiskFile
from tallybook.sim.deterministic import CrashFound, CrashOptions, Promises, SimDisk, enumerate_crashes

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
            await file.write(number * RECORD_BYTES, [record(number)])
            if self.fault == "ack before sync":
                promises.add(number)
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


def test_a_careful_writer_loses_nothing_in_any_power_loss():
    report = enumerate_crashes(Writer(), check)
    assert report.failures == []
    assert report.points > 60
    assert report.states > report.checked > 150
    assert enumerate_crashes(Writer(), check, only="0 in mkdir /d: nothing pending survives").checked == 1
    with pytest.raises(InvalidArgument, match="no crash state is called 'nonsense'"):
        enumerate_crashes(Writer(), check, only="nonsense")


@pytest.mark.parametrize("fault", ["never synced", "name not synced", "ack before sync"])
def test_each_planted_mistake_is_found_and_can_be_replayed_alone(fault):
    with pytest.raises(CrashFound) as caught:
        enumerate_crashes(Writer(fault), check, max_failures=2)
    lines = [line.strip() for line in str(caught.value).splitlines()]
    names = [line.removeprefix("only=").strip("'\"") for line in lines if line.startswith("only=")]
    assert len(names) == 2
    for name in names:
        with pytest.raises(CrashFound, match="1 of 1 crash states") as again:
            enumerate_crashes(Writer(fault), check, only=name)
        assert isinstance(again.value.__cause__, AssertionError)


def test_a_boot_that_raises_any_error_or_hangs_is_a_failure():
    async def boots_never(disk: SimDisk, promises: tuple[object, ...]) -> None:
        raise KeyError("no superblock")

    async def hangs(disk: SimDisk, promises: tuple[object, ...]) -> None:
        disk.fail("open", error=None, delay_seconds=10_000)
        await disk.open("/d/log")

    with pytest.raises(CrashFound, match="3 of 3") as caught:
        enumerate_crashes(Writer(), boots_never)
    assert isinstance(caught.value.__cause__, KeyError)
    end = "11 end: nothing pending survives"
    with pytest.raises(CrashFound, match="Stuck"):
        enumerate_crashes(Writer(records=1), hangs, max_failures=1, deadline_seconds=100, only=end)


def test_every_distinct_pair_of_disk_and_promises_is_checked_once_and_a_seed_tries_the_same_states():
    def tried(seed: int) -> list[tuple[bytes, int]]:
        seen: list[tuple[bytes, int]] = []

        async def remember(disk: SimDisk, promises: tuple[object, ...]) -> None:
            seen.append((disk.state.digest(), len(promises)))

        report = enumerate_crashes(Writer(), remember, seed=seed, options=CrashOptions(tear_points=1))
        assert len(seen) == len(set(seen)) == report.checked
        return seen

    first = tried(1)
    assert {promised for _, promised in first} == set(range(13))
    assert first == tried(1)
    assert first != tried(2)


def test_a_recovery_that_is_only_safe_once_is_found_by_a_second_crash():
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


def test_second_crashes_stay_within_their_limit():
    async def appends(disk: SimDisk, promises: tuple[object, ...]) -> None:
        file = await open_log(disk)
        await file.write(await file.size(), [b"booted"])
        await file.sync()

    assert enumerate_crashes(Writer(), appends, double_crashes=70).doubles == 70


def test_a_workload_may_start_on_a_disk_that_is_not_empty():
    prepared: list[SimDisk] = []

    async def prepare(disk: SimDisk, promises: Promises) -> None:
        await Writer(records=2)(disk, promises)
        prepared.append(disk.fork())

    async def go_on(disk: SimDisk, promises: Promises) -> None:
        file = await disk.open("/d/log")
        assert await read_log(file) == [0, 1]
        promises.add(0)
        await file.write(2 * RECORD_BYTES, [record(2)])
        await file.sync()
        promises.add(2)

    enumerate_crashes(prepare, check)
    assert enumerate_crashes(go_on, check, disk=prepared[0]).checked > 5
