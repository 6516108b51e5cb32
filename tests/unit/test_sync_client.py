"""The blocking client on in-memory bookies, on a real loop: threads, limits, interruptions, close."""

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import Any

import pytest

from tallybook.client.blocking import writer as sync_writer
from tallybook.client.sync import Client, LedgerWriter, PendingAppend
from tallybook.core.errors import (
    Busy,
    EntryTooLarge,
    HandleClosed,
    InvalidArgument,
    InvalidConfig,
    LedgerClosed,
    LedgerFenced,
    Outcome,
    ReadBeyondLac,
)
from tallybook.runtime.blocking.loop_thread import MAX_ITEMS_PER_TURN

from .sync_stream_parts import PATIENCE, filled, wait_until


@pytest.fixture
def client(stage: Any) -> Client:
    return stage.client


def payloads(reader: Any) -> list[bytes]:
    """Every payload that may be read."""
    return [entry.payload for entry in reader.read(0, reader.last_add_confirmed)]


# -- calls ------------------------------------------------------------------------------------------


def test_appends_of_one_thread_by_any_call_keep_their_order_and_are_read_back_in_every_way(client: Client) -> None:
    with client.create_ledger(custom={"name": b"log"}) as ledger:
        first = ledger.append_nowait(b"0")
        assert ledger.append(b"1") == 1
        later = ledger.append_nowait(b"2")
        assert ledger.append_many([b"3", bytearray(b"4"), memoryview(b"5")]) == range(3, 6)
        assert (first.result(), later.result(PATIENCE)) == (0, 2)
        assert first.done()
        assert (ledger.last_add_confirmed, ledger.length, ledger.ended) == (5, 6, False)
        assert client.open_ledger(ledger.id, recover=False).read_last_add_confirmed() <= 5
    assert ledger.ended
    assert ledger.metadata.closed
    wanted = [b"0", b"1", b"2", b"3", b"4", b"5"]
    reader = client.open_ledger(ledger.id)
    assert (reader.id, reader.last_add_confirmed, reader.closed) == (ledger.id, 5, True)
    assert reader.metadata.custom == {"name": b"log"}
    assert payloads(reader) == wanted
    assert [entry.payload for group in reader.read_batches(1, 4) for entry in group] == wanted[1:5]
    assert [entry.payload for entry in reader.read_unconfirmed(2)] == wanted[2:]
    assert [entry.payload for entry in reader.tail(3)] == wanted[3:]
    assert [entry.entry_id for group in reader.tail_batches() for entry in group] == [*range(6)]
    assert reader.read_entry(4).payload == b"4"
    sealed = [pair for group in reader.read_sealed(0, 5) for pair in group]
    assert (reader.read_batch(5)[0], sealed[-1][0].last_entry_id) == (sealed[-1][0], 5)
    assert reader.refresh() is False
    assert reader.read_last_add_confirmed() == reader.ask_last_add_confirmed() == 5
    assert reader.try_read_last_add_confirmed() == 5
    assert payloads(client.copying_reader(reader.metadata)) == wanted


def test_a_call_comes_behind_everything_that_was_appended_before_however_much_it_is(client: Client) -> None:
    ledger = client.create_ledger()
    count = 2 * MAX_ITEMS_PER_TURN + 1
    pending = [ledger.append_nowait(b"x") for _ in range(count)]
    assert ledger.append_many([b"y"]) == range(count, count + 1)
    assert [append.result() for append in pending] == list(range(count))
    pending += [ledger.append_nowait(b"z") for _ in range(count)]
    assert ledger.close().last_entry_id == 2 * count
    assert pending[-1].result() == 2 * count
    left = client.create_ledger()
    pending = [left.append_nowait(b"x") for _ in range(count)]
    left.abandon()
    assert all(append.done() for append in pending)


def test_deferred_sync_and_chosen_ids_work_from_threads(client: Client) -> None:
    with client.create_ledger(deferred_sync=True) as ledger:
        ledger.append(b"x")
        assert ledger.last_add_confirmed == -1
        assert ledger.force() == 0
        assert ledger.show() == 0
    with client.create_ledger().with_chosen_ids() as chosen, ThreadPoolExecutor(5) as threads:
        found = list(threads.map(lambda number: chosen.append(number, b"%d" % number), (3, 1, 4, 0, 2)))
        assert found == [3, 1, 4, 0, 2]
        assert (chosen.next_missing, chosen.ledger.last_add_confirmed) == (5, 4)
        with pytest.raises(InvalidArgument, match="used before"):
            chosen.append(2, b"again")
    assert payloads(client.open_ledger(chosen.ledger.id)) == [b"0", b"1", b"2", b"3", b"4"]
    used = client.create_ledger()
    used.append_nowait(b"x")
    with pytest.raises(InvalidArgument, match="appended already"):
        used.with_chosen_ids()
    left = client.create_ledger().with_chosen_ids()
    left.abandon()
    assert left.ledger.ended


def test_errors_are_those_of_the_asyncio_client_and_raised_where_it_raises_them(client: Client) -> None:
    ledger = client.create_ledger()
    for append in (ledger.append, ledger.append_nowait, lambda payload: ledger.append_many([payload])):
        with pytest.raises(EntryTooLarge):
            append(bytes(2_000_000))
        with pytest.raises(TypeError, match="an entry is bytes"):
            append("text")
    ledger.append(b"x")
    reader = client.open_ledger(ledger.id, recover=False)
    beyond = reader.read(0, 7)
    with pytest.raises(ReadBeyondLac):
        next(beyond)
    client.recover_ledger(ledger.id)
    with pytest.raises(LedgerFenced):
        ledger.append(b"y")
    with pytest.raises(LedgerFenced) as late:
        ledger.append_nowait(b"z")
    assert late.value.outcome is Outcome.NOT_DONE
    assert ledger.close().last_entry_id == 0, "the recovery closed it at the end of this handle"
    closed = client.create_ledger()
    assert closed.close() == closed.close()
    with pytest.raises(LedgerClosed):
        closed.append(b"x")


def test_an_append_that_cannot_copy_its_buffer_releases_its_budget(client, monkeypatch):
    def interrupted(*_parts: object) -> PendingAppend:
        raise KeyboardInterrupt

    with client.create_ledger() as ledger:
        with monkeypatch.context() as patched:
            patched.setattr(sync_writer, "PendingAppend", interrupted)
            with pytest.raises(KeyboardInterrupt):
                ledger.append_nowait(bytearray(1000))
        wait_until(lambda: client.pending_bytes == 0)
        assert ledger.append(b"x") == 0


def test_a_buffer_may_be_used_again_as_soon_as_append_nowait_has_returned(stage: Any) -> None:
    buffer = bytearray(b"first")
    with stage.client.create_ledger() as ledger:
        stage.client._loop.call_soon(threading.Event().wait, 0.1)
        ledger.append_nowait(memoryview(buffer))
        buffer[:] = b"other"
        ledger.append_nowait(buffer)
    assert payloads(stage.client.open_ledger(ledger.id)) == [b"first", b"other"]


# -- threads ----------------------------------------------------------------------------------------


def test_threads_that_append_many_at_once_get_the_ids_of_their_own(client: Client) -> None:
    # All together exceed the budget.
    runs = [[b"%d %d " % (thread, number) + bytes(900) for number in range(60)] for thread in range(16)]
    with client.create_ledger() as ledger, ThreadPoolExecutor(8) as threads:
        ids = list(threads.map(ledger.append_many, runs))
    written = payloads(client.open_ledger(ledger.id))
    assert [[written[entry_id] for entry_id in own] for own in ids] == runs
    assert len(written) == 16 * 60


def test_threads_that_append_without_a_wait_never_hold_more_than_the_budget(stage: Any) -> None:
    client, ledger = stage.client, stage.client.create_ledger()
    assert client.max_pending_bytes == 256 * 1024
    ledger.append(b"x")
    stage.hold()
    most = []

    def fill(_thread: int) -> list[PendingAppend]:
        found = filled(ledger)
        most.append(client.pending_bytes)
        return found

    with ThreadPoolExecutor(8) as threads:
        pending = list(chain(*threads.map(fill, range(8))))
    # A batch has a header, which was not counted before.
    assert client.max_pending_bytes - 600 < max(most) <= client.max_pending_bytes + 4 * 200
    with pytest.raises(Busy) as refused:
        ledger.append_nowait(bytes(500))
    assert refused.value.retry_after_ms >= 1
    assert not pending[-1].done()
    with ThreadPoolExecutor(2) as threads:
        waiting = [threads.submit(ledger.append, bytes(600)), threads.submit(ledger.append_many, [bytes(600)] * 3)]
        for result in (pending[-1].result, waiting[0].result):
            with pytest.raises(TimeoutError):
                result(0.05)
        stage.release()
        assert sorted(append.result(PATIENCE) for append in pending) == list(range(1, len(pending) + 1))
        assert {waiting[0].result(PATIENCE), *waiting[1].result(PATIENCE)} == {
            *range(len(pending) + 1, len(pending) + 5)
        }
    wait_until(lambda: client.pending_bytes == 0)


# -- iterators --------------------------------------------------------------------------------------


def test_an_iterator_that_is_left_early_leaves_nothing_behind(stage: Any) -> None:
    client = stage.client
    ledger = client.create_ledger()
    ledger.append_many([bytes(1000)] * 1000)
    reader = client.open_ledger(ledger.id, recover=False)
    before = stage.tasks()
    for start in (reader.tail, lambda: reader.read(0, reader.last_add_confirmed), lambda: reader.read_unconfirmed(0)):
        for entry in start():
            assert entry.entry_id < 3
            if entry.entry_id == 2:
                break
        # What the engine's generators hold among each other ends in the turns of the loop that follow.
        wait_until(lambda: stage.tasks() <= before)
    for _ in client.list_ledgers():
        break


# -- interruptions, and the end ----------------------------------------------------------------------


def test_an_interrupted_wait_is_cancelled_and_the_client_as_good_as_before(stage, interrupted_while):
    client = stage.client
    ledger = client.create_ledger()
    stage.hold()
    sent = ledger.append_nowait(b"0")
    interrupted_while(sent.result)
    interrupted_while(lambda: ledger.append(b"1"))
    interrupted_while(lambda: ledger.append_many([b"2", b"3"]))
    reader = client.open_ledger(ledger.id, recover=False)
    interrupted_while(lambda: next(reader.tail()))
    interrupted_while(ledger.close)
    stage.release()
    assert sent.result(PATIENCE) == 0
    assert ledger.close().last_entry_id == 3
    assert payloads(client.open_ledger(ledger.id)) == [b"0", b"1", b"2", b"3"]


def test_a_block_that_is_interrupted_abandons_its_ledger(stage, interrupted_while):
    made: list[LedgerWriter] = []

    def work() -> None:
        with stage.client.create_ledger() as ledger:
            made.append(ledger)
            assert ledger.append(b"first") == 0
            stage.hold()
            ledger.append(b"interrupted")

    interrupted_while(work)
    assert made[0].ended
    stage.release()
    assert payloads(stage.client.open_ledger(made[0].id))[0] == b"first"


def test_a_tail_is_asked_with_a_time_and_the_end_is_not_taken_for_its_passing(client: Client) -> None:
    ledger = client.create_ledger()
    ledger.append_many([b"0", b"1", b"2", b"3"])
    ledger.show()
    with contextlib.closing(client.open_ledger(ledger.id, recover=False).tail()) as tail:
        assert tail.next(PATIENCE).payload == b"0"
        assert [entry.payload for entry in tail.read_batch(2, PATIENCE)] == [b"1", b"2"]
        assert next(tail).payload == b"3"
        with pytest.raises(TimeoutError):
            tail.next(0.05)
        assert tail.read_batch(timeout=0.05) == []
        ledger.append(b"4")
        ledger.close()
        assert tail.next(PATIENCE).payload == b"4"
        assert (tail.next(PATIENCE), tail.read_batch(), list(tail)) == (None, None, [])


def test_a_close_settles_what_is_pending_and_ends_what_waits(stage: Any) -> None:
    client = stage.client
    ledger = client.create_ledger()
    reader = client.open_ledger(ledger.id, recover=False)
    stage.hold()
    with ThreadPoolExecutor(3) as threads:
        appending = threads.submit(ledger.append, b"x")
        tailing = threads.submit(lambda: list(reader.tail()))
        many = threads.submit(ledger.append_many, [b"y"] * 10)
        with pytest.raises(TimeoutError):
            tailing.result(0.1)
        pending = filled(ledger)
        client.close()
        for waiting in (appending, many):
            with pytest.raises(LedgerClosed) as unknown:
                waiting.result(PATIENCE)
            assert unknown.value.outcome in {Outcome.NOT_DONE, Outcome.UNKNOWN}
        with pytest.raises(HandleClosed, match=r"client (is closed|was closed)"):
            tailing.result(PATIENCE)
    for append in (pending[0], pending[-1]):
        assert append.done()
        with pytest.raises(LedgerClosed):
            append.result()
    client.close()


def test_after_the_close_every_call_says_so(stage: Any) -> None:
    client = stage.client
    ledger = client.create_ledger()
    chosen = client.create_ledger().with_chosen_ids()
    entry_id = ledger.append(b"x")
    reader = client.open_ledger(ledger.id, recover=False)
    reading = reader.tail()
    next(reading)
    client.close()
    for use in (
        client.create_ledger,
        client.create_unowned_ledger,
        client.reserve_ledger_id,
        client.bookies,
        lambda: client.open_ledger(ledger.id),
        lambda: client.adopt_ledger(ledger.id),
        lambda: list(client.list_ledgers()),
        lambda: ledger.append(b"y"),
        lambda: ledger.append_nowait(b"y"),
        lambda: ledger.append_many([b"y"]),
        ledger.force,
        ledger.close,
        ledger.with_chosen_ids,
        lambda: chosen.append(0, b"y"),
        chosen.close,
        lambda: reader.read_entry(entry_id),
        lambda: list(reader.read(0, entry_id)),
        reader.refresh,
        lambda: next(reading),
    ):
        with pytest.raises(HandleClosed, match=r"client (is closed|was closed)"):
            use()
    ledger.abandon()
    assert (ledger.id, reader.last_add_confirmed, ledger.ended) == (reader.id, entry_id, True)


def test_a_client_that_is_not_open_says_so_and_is_opened_once(stage: Any) -> None:
    never = stage.another()
    for use in (never.bookies, never.create_ledger, never.list_ledgers, lambda: never.open_ledger(0)):
        with pytest.raises(InvalidArgument, match="not open: use it in a 'with' block"):
            use()
    never.close()
    with pytest.raises(InvalidArgument, match="opened before"):
        stage.client.__enter__()


def test_a_client_that_cannot_be_opened_leaves_no_thread() -> None:
    with pytest.raises(InvalidConfig), Client("carrier-pigeon://roof"):
        pytest.fail("it was opened")
    assert "tallybook client" not in {thread.name for thread in threading.enumerate()}


def test_a_call_on_the_clients_own_thread_is_refused(stage: Any) -> None:
    client = stage.client
    ledger = client.create_ledger()
    stage.hold()
    pending = ledger.append_nowait(b"x")
    reader = client.open_ledger(ledger.id, recover=False)

    def refused() -> int:
        calls = (
            client.bookies, client.create_ledger, client.close, ledger.close, ledger.abandon, pending.result,
            lambda: ledger.append(b"y"), lambda: next(reader.tail()),
        )  # fmt: skip
        for call in calls:
            with pytest.raises(InvalidArgument, match="on the thread of its own event loop"):
                call()
        return len(calls)

    assert client._loop.call(refused) == 8
    stage.release()
    assert ledger.close().last_entry_id == 0, "and nothing was written by what was refused"
