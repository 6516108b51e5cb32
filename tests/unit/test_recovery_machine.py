"""The recovery machine with every answer that bookies may truthfully give."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallybook.client.recovery.machine import (
    AwaitStragglers,
    Close,
    Failed,
    FenceMember,
    FindReplacements,
    ReadEnd,
    ReadMember,
    RecoveryAction,
    RecoveryMachine,
    WriteBack,
)
from tallybook.client.recovery.window import WINDOW_BATCHES
from tallybook.core import batch as codec
from tallybook.core.answers import FenceAnswer
from tallybook.core.batch import decode_header, encode_batch
from tallybook.core.errors import BookieUnavailable, EntryAbsent, EntryCorrupt, EntryUnknown, TallybookError
from tallybook.core.ids import MAX_ID
from tallybook.core.quorum import Quorum
from tallybook.metadata.ledger.model import Fragment, LedgerMetadata, LedgerState, close

QUORUMS = (Quorum(1, 1, 1), Quorum(3, 3, 2), Quorum(3, 3, 3), Quorum(4, 3, 2, 3), Quorum(5, 3, 3, 6))
PER_BATCH = 3


def batch(first: int) -> bytes:
    return encode_batch(
        1, first, [b"0123456789"] * PER_BATCH, lac=first - 1, ledger_length=(first + PER_BATCH) * 10, written_at_us=0
    )


class Cluster:
    """The entries of bookies when the writer is gone, and the answers of each."""

    def __init__(self, draw: st.DrawFn, quorum: Quorum, batches: int) -> None:
        self.quorum = quorum
        self.held: dict[int, set[int]] = {position: set() for position in range(quorum.ensemble)}
        self.confirmed = -1
        contiguous = True
        for index in range(batches):
            first = index * PER_BATCH
            holders = draw(st.sets(st.sampled_from(quorum.write_set(first))), label=f"holders of {first}")
            for position in holders:
                self.held[position].add(first)
            contiguous = contiguous and quorum.acked(holders, first)
            if contiguous:
                self.confirmed = first + PER_BATCH - 1
        self.moods = {
            position: draw(st.sampled_from(("well", "well", "well", "silent", "corrupt", "unknown")))
            for position in range(quorum.ensemble)
        }
        self.by_bookie = {f"b{position}": set(held) for position, held in self.held.items()}
        self.spares = {
            f"spare{index}": draw(st.booleans(), label="spare is well") for index in range(draw(st.integers(0, 3)))
        }
        self.run = draw(st.integers(1, 4), label="most batches of one answer")
        self.waited_in_vain = False
        # A bookie's LAC lags behind what is confirmed, and lies on a batch boundary.
        self.lacs = {
            position: draw(st.sampled_from([-1, *range(PER_BATCH - 1, self.confirmed + 1, PER_BATCH)]))
            for position in range(quorum.ensemble)
        }

    def answer(self, machine: RecoveryMachine, action: RecoveryAction) -> list[RecoveryAction]:
        match action:
            case FenceMember(position):
                if self.moods[position] == "silent":
                    return machine.fence_failed(position, BookieUnavailable("silent"))
                return machine.fenced(position, FenceAnswer(self.lacs[position], -1))
            case ReadMember(position, entry_id):
                return self.read(machine, position, entry_id)
            case WriteBack(position, bookie_id, entry_id, _):
                if bookie_id in self.spares:
                    well = self.spares[bookie_id]
                elif well := self.moods[position] != "silent":
                    assert bookie_id == f"b{position}"
                    self.held[position].add(entry_id)
                if not well:
                    return machine.add_failed(position, entry_id, BookieUnavailable("silent"))
                self.by_bookie.setdefault(bookie_id, set()).add(entry_id)
                return machine.added(position, entry_id)
            case AwaitStragglers(round_number):
                actions = machine.stragglers_late(round_number)
                self.waited_in_vain = self.waited_in_vain or bool(actions)
                return actions
            case FindReplacements(ensemble, positions):
                free = [spare for spare in self.spares if spare not in ensemble]
                return machine.replacements_found(dict(zip(positions, free, strict=False)))
            case ReadEnd(entry_id):
                first = entry_id - PER_BATCH + 1
                good = [p for p in self.held if first in self.held[p] and self.moods[p] == "well"]
                if good:
                    return machine.end_read(decode_header(batch(first)))
                return machine.end_failed(BookieUnavailable("no good copy"))
        raise AssertionError(action)

    def read(self, machine: RecoveryMachine, position: int, entry_id: int) -> list[RecoveryAction]:
        mood = self.moods[position]
        if mood in ("silent", "unknown"):
            error: TallybookError = BookieUnavailable("silent") if mood == "silent" else EntryUnknown("hole")
            return machine.read_failed(position, entry_id, error)
        if entry_id not in self.held[position]:
            return machine.read_failed(position, entry_id, EntryAbsent("never held"))
        if mood == "corrupt":
            return machine.read_failed(position, entry_id, EntryCorrupt("rot"))
        more = []
        for first in range(entry_id + PER_BATCH, entry_id + PER_BATCH * self.run, PER_BATCH):
            if first not in self.held[position]:
                break
            more.append(batch(first))
        return machine.read(position, entry_id, batch(entry_id), more)


@given(st.data())
def test_recovery_keeps_what_was_confirmed_or_fails(data: st.DataObject) -> None:
    quorum = data.draw(st.sampled_from(QUORUMS))
    cluster = Cluster(data.draw, quorum, data.draw(st.integers(0, 6)))
    bookies = tuple(f"b{position}" for position in range(quorum.ensemble))
    metadata = LedgerMetadata(1, quorum, (Fragment(0, bookies),), "creator", 0, LedgerState.IN_RECOVERY)
    machine = RecoveryMachine(metadata)
    todo = machine.start()
    while todo:
        action = todo.pop(data.draw(st.integers(0, len(todo) - 1)))
        if isinstance(action, Failed):
            well = all(mood == "well" for mood in cluster.moods.values())
            assert not well, f"every bookie answers, and yet: {action.error!r}"
            return
        if isinstance(action, Close):
            break
        todo += cluster.answer(machine, action)
    else:
        raise AssertionError("the recovery neither closed nor failed")
    assert action.last_entry_id >= cluster.confirmed
    assert action.length == (action.last_entry_id + 1) * 10
    closed = close(metadata, action.last_entry_id, action.length, fragments=action.fragments, missed=action.missed)
    for first in range(0, action.last_entry_id + 1, PER_BATCH):
        # As a reader of the metadata sees it: the bookies that the fragments name have the entry.
        named = closed.fragment_of(first).bookies
        holders = {position for position, bookie in enumerate(named) if first in cluster.by_bookie.get(bookie, ())}
        assert quorum.acked(holders, first)
    if all(mood == "well" for mood in cluster.moods.values()):
        assert action.missed == () or cluster.waited_in_vain
        assert closed.fragments == metadata.fragments


def test_a_ledger_that_holds_the_highest_id_ends_there() -> None:
    quorum = Quorum(1, 1, 1)
    metadata = LedgerMetadata(1, quorum, (Fragment(0, ("a",)),), "c", 0, LedgerState.IN_RECOVERY)
    machine = RecoveryMachine(metadata)
    machine.start()
    first = MAX_ID
    [read] = machine.fenced(0, FenceAnswer(first - 1, -1))
    assert read == ReadMember(0, first)
    held = encode_batch(1, first, [b"x"], lac=first - 1, ledger_length=MAX_ID, written_at_us=0)
    [add] = machine.read(0, first, held)
    assert isinstance(add, WriteBack)
    [end] = machine.added(0, first)
    assert isinstance(end, Close)
    assert end.last_entry_id == first


@pytest.mark.parametrize("newer_at", [(0,), (0, 1), (0, 1, 2)])
def test_a_batch_of_a_newer_version_never_shortens_a_ledger(newer_at, monkeypatch) -> None:
    with monkeypatch.context() as newer:
        newer.setattr(codec, "VERSION", codec.VERSION + 1)
        unknown = batch(0)
    metadata = LedgerMetadata(1, Quorum(3, 3, 3), (Fragment(0, ("a", "b", "c")),), "c", 0, LedgerState.IN_RECOVERY)
    machine, told = RecoveryMachine(metadata), []
    todo = machine.start()
    while todo:
        match todo.pop(0):
            case FenceMember(position):
                todo += machine.fenced(position, FenceAnswer(-1, -1))
            case ReadMember(position, entry_id) if position in newer_at:
                todo += machine.read(position, entry_id, unknown)
            case ReadMember(position, entry_id):
                todo += machine.read_failed(position, entry_id, EntryUnknown("cannot tell"))
            case other:
                told.append(other)
    [failed] = told
    assert isinstance(failed, Failed)
    assert "NewerFormat" in failed.error.message


def reading(entry_id: int = 0) -> RecoveryMachine:
    """A recovery of a ledger of three members that reads from ``entry_id``."""
    metadata = LedgerMetadata(1, Quorum(3, 3, 2), (Fragment(0, ("a", "b", "c")),), "c", 0, LedgerState.IN_RECOVERY)
    machine = RecoveryMachine(metadata)
    machine.start()
    machine.fenced(0, FenceAnswer(entry_id - 1, -1))
    machine.fenced(1, FenceAnswer(entry_id - 1, -1))
    return machine


def test_of_an_answer_with_several_batches_only_the_good_ones_up_to_the_first_bad_one_count() -> None:
    machine = reading()
    rotten = batch(6)[:-1] + bytes([batch(6)[-1] ^ 1])
    actions = machine.read(0, 0, batch(0), [batch(3), rotten, batch(9)])
    assert [action.entry_id for action in actions if isinstance(action, WriteBack)] == [0] * 3 + [3] * 3
    assert [action for action in actions if isinstance(action, ReadMember)] == [ReadMember(at, 6) for at in range(3)]


def test_reading_stops_at_a_bounded_window_and_goes_on_when_half_of_it_is_done() -> None:
    machine, at = reading(), 0
    actions: list[RecoveryAction] = [ReadMember(0, 0)]
    while any(isinstance(action, ReadMember) for action in actions):
        actions = machine.read(0, at, batch(at))
        at += PER_BATCH
    assert at == WINDOW_BATCHES * PER_BATCH
    asked = [
        first
        for first in range(0, at, PER_BATCH)
        for position in range(3)
        if any(isinstance(action, ReadMember) for action in machine.added(position, first))
    ]
    assert asked == [WINDOW_BATCHES // 2 * PER_BATCH]
