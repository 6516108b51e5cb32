"""Whether a ledger has a writer, as a bookie sees it: attached, not attached, or possibly about to return."""

from collections.abc import Sequence

import pytest

from tallybook.bookie.rpc.attached_ledgers import MAX_LOST, MAX_LOST_STREAMS, AttachedLedgers
from tallybook.core.errors import MetadataUnavailable, NoSuchLedger, TallybookError
from tallybook.runtime.clock import RealClock
from tallybook.wire.batches import MAX_ATTACHED_LEDGERS, WRITER_RETURN_SECONDS
from tallybook.wire.messages import Attach

KEY, WRONG, IDENTITY, OTHER = b"k" * 32, b"w" * 32, b"i" * 16, b"o" * 16


class Hands(RealClock):
    """A clock whose seconds the test counts."""

    now = 1000.0

    def monotonic(self) -> float:
        return self.now


class Ledgers:
    """All ledgers have one key and one identity."""

    error: TallybookError | None = None

    async def any_opens(self, ledger_id: int, shown: Sequence[tuple[bytes, bytes]]) -> bool:
        if self.error is not None:
            raise self.error
        return any(key == KEY and identity in (b"", IDENTITY) for key, identity in shown)


LEDGERS = Ledgers()


def attach(ledger_id: int, key: bytes = KEY, identity: bytes = IDENTITY) -> Attach:
    return Attach(ledger_id, key, identity=identity)


def running() -> tuple[AttachedLedgers, Hands]:
    """The attached ledgers of a bookie that has been up for long, and its clock."""
    clock = Hands()
    ledgers = AttachedLedgers(clock)
    clock.now += WRITER_RETURN_SECONDS
    return ledgers, clock


async def writers(ledgers: AttachedLedgers, *ledger_ids: int) -> list[bool | None]:
    return [await ledgers.writer_of(LEDGERS, each) for each in ledger_ids]


async def test_nothing_is_told_until_writers_had_the_time_to_come_after_the_start() -> None:
    clock = Hands()
    ledgers = AttachedLedgers(clock)
    ledgers.begin(may_write=True).attach(attach(1))
    clock.now += WRITER_RETURN_SECONDS - 1
    assert await writers(ledgers, 1, 2) == [True, None]
    clock.now += 1
    assert await writers(ledgers, 1, 2) == [True, False]


async def test_a_writer_whose_stream_ended_may_come_back_and_one_that_detached_its_ledger_does_not() -> None:
    ledgers, clock = running()
    one, other = ledgers.begin(may_write=True), ledgers.begin(may_write=True)
    for ledger_id in (1, 2, 3):
        one.attach(attach(ledger_id))
    other.attach(attach(3))
    one.detach(1)
    ledgers.end(one)
    assert await writers(ledgers, 1, 2, 3) == [False, None, True]
    clock.now += WRITER_RETURN_SECONDS
    assert await writers(ledgers, 1, 2, 3) == [False, False, True]


async def test_a_client_that_may_not_write_any_more_is_no_writer_and_leaves_none_behind() -> None:
    ledgers, _ = running()
    stream = ledgers.begin(may_write=True)
    stream.attach(attach(1))
    stream.set_may_write(False)
    assert await writers(ledgers, 1) == [False]
    ledgers.end(stream)
    assert await writers(ledgers, 1) == [False]


@pytest.mark.parametrize("wrong", [attach(1, WRONG), attach(1, KEY, OTHER)], ids=["key", "identity"])
async def test_a_client_without_the_key_and_identity_of_a_ledger_is_not_its_writer(wrong: Attach) -> None:
    ledgers, clock = running()
    intruder, writer = ledgers.begin(may_write=True), ledgers.begin(may_write=True)
    intruder.attach(wrong)
    assert await writers(ledgers, 1) == [False]
    writer.attach(attach(1))
    assert await writers(ledgers, 1) == [True]
    ledgers.end(writer)
    assert await writers(ledgers, 1) == [None]
    clock.now += WRITER_RETURN_SECONDS
    ledgers.end(intruder)
    assert await writers(ledgers, 1) == [False]


@pytest.mark.parametrize(("error", "told"), [(MetadataUnavailable("away"), None), (NoSuchLedger("gone"), False)])
async def test_where_the_key_of_a_ledger_is_not_known_it_is_not_known_whether_it_has_a_writer(
    error: TallybookError, told: bool | None
) -> None:
    ledgers, _ = running()
    ledgers.begin(may_write=True).attach(attach(1))
    answers = Ledgers()
    answers.error = error
    assert await ledgers.writer_of(answers, 1) is told


async def test_nothing_is_told_while_a_stream_has_more_ledgers_than_are_remembered_and_for_a_while_after() -> None:
    ledgers, clock = running()
    stream = ledgers.begin(may_write=True)
    for ledger_id in range(MAX_ATTACHED_LEDGERS + 1):
        stream.attach(attach(ledger_id))
    assert await writers(ledgers, 0, 1) == [None, True]
    ledgers.end(stream)
    assert await writers(ledgers, 0) == [None]
    clock.now += WRITER_RETURN_SECONDS
    assert await writers(ledgers, 0) == [False]


@pytest.mark.parametrize(
    ("streams", "each"), [(MAX_LOST // MAX_ATTACHED_LEDGERS + 1, MAX_ATTACHED_LEDGERS), (MAX_LOST_STREAMS + 1, 1)]
)
async def test_nothing_is_told_for_a_while_where_too_much_was_lost_to_remember_it(streams: int, each: int) -> None:
    ledgers, clock = running()
    shared = [attach(ledger_id) for ledger_id in range(each)]
    for _ in range(streams):
        stream = ledgers.begin(may_write=True)
        for found in shared:
            stream.attach(found)
        ledgers.end(stream)
    assert await writers(ledgers, MAX_ATTACHED_LEDGERS) == [None]
    clock.now += WRITER_RETURN_SECONDS
    assert await writers(ledgers, MAX_ATTACHED_LEDGERS, 0) == [False, False]
