"""The production state machines as cached tables: state and event give next state and actions, computed once.

A state is a number. Two machines that behave the same have the same number, so data that no longer matter (answers to
questions that are decided) are dropped before numbering.
"""

from __future__ import annotations

import pickle
from functools import cache
from typing import Any, Generic, NamedTuple, TypeVar

from tallybook.client.recovery import machine as recovery
from tallybook.client.recovery.machine import Phase, RecoveryMachine
from tallybook.client.writer import actions as writing
from tallybook.client.writer.machine import WriterMachine
from tallybook.client.writer.policy import WriterPolicy
from tallybook.core import errors
from tallybook.core.answers import AddAnswer, FenceAnswer
from tallybook.core.batch import decode_header, encode_batch
from tallybook.core.quorum import Quorum
from tallybook.metadata.ledger.model import Fragment, LedgerMetadata

from .symmetry import Order, move_recovery, move_writer

LEDGER = 1
_RULES = WriterPolicy(add_timeout_s=1.0, away_timeout_s=1.0, lag_limit_bytes=1 << 30, max_changes=2)

Machine = TypeVar("Machine", WriterMachine, RecoveryMachine)


@cache
def batch_of(entry_id: int, lac: int) -> bytes:
    """A batch of one entry."""
    return encode_batch(LEDGER, entry_id, [b"x"], lac=lac, ledger_length=entry_id + 1, written_at_us=0)


class _Numbered(Generic[Machine]):
    """Numbers machine states by their pickled bytes."""

    def __init__(self) -> None:
        self._bytes: list[bytes] = []
        self._numbers: dict[bytes, int] = {}

    def number(self, machine: Machine) -> int:
        """The number of this state."""
        data = pickle.dumps(machine, protocol=5)
        number = self._numbers.setdefault(data, len(self._bytes))
        if number == len(self._bytes):
            self._bytes.append(data)
        return number

    def machine(self, number: int) -> Machine:
        """A new machine in this state."""
        thawed: Machine = pickle.loads(self._bytes[number])  # noqa: S301 - written by ``number``
        return thawed


class WriterView(NamedTuple):
    """The part of a writer's state that the model needs."""

    lac: int
    lac_length: int
    pending: int
    fragment: Fragment
    wanted: tuple[int, ...]
    dead: bool


class Writers:
    """States of the writer machine."""

    def __init__(self, quorum: Quorum, names: list[str]) -> None:
        self._quorum = quorum
        self._names = names
        self._states: _Numbered[WriterMachine] = _Numbered()
        self._same: Order = tuple(range(quorum.ensemble))
        self.step = cache(self._step)
        self.moved = cache(self._moved)
        self.view = cache(self._view)

    def start(self) -> int:
        """State of a writer that is connected to all bookies."""
        machine = WriterMachine(LEDGER, self._quorum, self._names, _RULES, now=0.0)
        for position in range(self._quorum.ensemble):
            machine.connected(position, 0.0)
        return self._number(machine, self._same)

    def _number(self, machine: WriterMachine, order: Order) -> int:
        # Also without an exchange, because it sorts unordered collections.
        move_writer(machine, order)
        return self._states.number(machine)

    def _moved(self, state: int, order: Order) -> int:
        """The state after an exchange of bookies."""
        return self._number(self._states.machine(state), order)

    def _step(self, state: int, event: str, *facts: Any) -> tuple[int, tuple[writing.WriterAction, ...]]:
        machine = self._states.machine(state)
        match event:
            case "submit":
                (entry_id,) = facts
                actions = machine.submit(entry_id, entry_id, 1, batch_of(entry_id, machine.lac), 0.0)
            case "acked":
                actions = machine.acked(*facts)
            case "refused":
                position, entry_id, code = facts
                actions = machine.refused(position, AddAnswer(LEDGER, entry_id, 1, code), 0.0)
            case "begin":
                actions = machine.begin_change(dict(facts), 0.0)
            case "changed":
                actions = machine.changed(0.0)
                for at in [at for action in actions if isinstance(action, writing.Replaced) for at in action.positions]:
                    actions += machine.connected(at, 0.0)
            case _:
                actions = machine.die(errors.LedgerFenced("told by the metadata"))
        sends = [
            writing.Send(action.position, action.first_entry_id, b"") if isinstance(action, writing.Send) else action
            for action in actions
        ]
        return self._number(machine, self._same), tuple(sends)

    def _view(self, state: int) -> WriterView:
        machine = self._states.machine(state)
        return WriterView(
            machine.lac, machine.lac_length, machine.unconfirmed_batches, machine.fragment, machine.wanted(0.0),
            machine.error is not None,
        )  # fmt: skip

    @cache  # noqa: B019 - lives as long as the search
    def holder(self, state: int, position: int) -> str:
        """The bookie of an ensemble position."""
        return self._states.machine(state).bookie_of(position)


class RecoveryView(NamedTuple):
    """The part of a recovery's state that the model needs."""

    metadata: LedgerMetadata
    phase: Phase
    entry_id: int
    writing: tuple[int, ...]
    """First entries of the batches that are being written back."""
    waiting: int
    """The round of the wait for stragglers, or 0."""


class Recoverers:
    """States of the recovery machine."""

    def __init__(self, positions: int) -> None:
        self._states: _Numbered[RecoveryMachine] = _Numbered()
        self._same: Order = tuple(range(positions))
        self.step = cache(self._step)
        self.moved = cache(self._moved)
        self.view = cache(self._view)

    def start(self, metadata: LedgerMetadata) -> tuple[int, tuple[recovery.RecoveryAction, ...]]:
        """State and first actions of a recovery that begins with these metadata."""
        machine = RecoveryMachine(metadata)
        actions = machine.start()
        return self._number(machine, self._same), tuple(actions)

    def _number(self, machine: RecoveryMachine, order: Order) -> int:
        _forget(machine)
        move_recovery(machine, order)
        return self._states.number(machine)

    def _moved(self, state: int, order: Order) -> int:
        """The same state after an exchange of bookies."""
        return self._number(self._states.machine(state), order)

    def _step(self, state: int, event: str, *facts: Any) -> tuple[int, tuple[recovery.RecoveryAction, ...]]:
        machine = self._states.machine(state)
        no_answer = errors.BookieUnavailable("no answer")
        match event:
            case "fenced":
                position, lac = facts
                actions = machine.fenced(position, FenceAnswer(lac, -1))
            case "not fenced":
                actions = machine.fence_failed(facts[0], no_answer)
            case "copy":
                position, entry_id, lac = facts
                actions = machine.read(position, entry_id, batch_of(entry_id, lac))
            case "absent":
                actions = machine.read_failed(facts[0], facts[1], errors.EntryAbsent("not here"))
            case "not read":
                actions = machine.read_failed(facts[0], facts[1], no_answer)
            case "held again":
                actions = machine.added(*facts)
            case "not held":
                actions = machine.add_failed(facts[0], facts[1], no_answer)
            case "late":
                actions = machine.stragglers_late(facts[0])
            case "replacements":
                actions = machine.replacements_found(dict(facts))
            case "end":
                entry_id, lac = facts
                actions = machine.end_read(decode_header(batch_of(entry_id, lac)))
            case _:
                actions = machine.end_failed(no_answer)
        return self._number(machine, self._same), tuple(actions)

    def _view(self, state: int) -> RecoveryView:
        machine = self._states.machine(state)
        waiting = machine._round if machine.waiting else 0  # noqa: SLF001 - the driver hands it back
        return RecoveryView(machine.metadata, machine.phase, machine.entry_id, machine.writing, waiting)


def _forget(machine: RecoveryMachine) -> None:
    """Drop answers that no longer matter."""
    held: dict[str, Any] = machine.__dict__
    for name, phase in (("_fences", Phase.FENCING), ("_reads", Phase.READING)):
        if machine.phase is not phase:
            held[name] = {}
