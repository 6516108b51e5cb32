"""A small world of one ledger, with an enumeration of everything that can happen in it.

One writer, some recoverers, a few bookies and perhaps replacement bookies. The writer and the recoverers are the
machines of ``client/writer`` and ``client/recovery``; bookies, network and metadata are the simplest ones that follow
docs/understand/protocol.md. Messages travel in any order. A world is a value: ``Model.steps`` enumerates its
successors, ``Model.broken`` tells which invariant it violates.

There is no time. A message that is lost, or sent to a crashed bookie, returns to its sender as a failure, like a
timeout. A metadata update (read, transition, compare-and-set, retry) is one step, at any later moment.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Final, Generic, NamedTuple, TypeAlias, TypeVar, assert_never

from tallybook.client.recovery import machine as recovery
from tallybook.client.recovery.driver import LastFragmentChanged, closed_at
from tallybook.client.recovery.machine import Phase
from tallybook.client.writer import actions as writing
from tallybook.core.errors import BookieReadOnly, LedgerFenced, TallybookError
from tallybook.core.quorum import Quorum
from tallybook.metadata.ledger.model import (
    Fragment,
    LedgerMetadata,
    LedgerState,
    begin_recovery,
    change_ensemble,
    close,
)

from .machines import LEDGER, Recoverers, Writers
from .symmetry import Order, arrangements, moved_fragment, renamed

NO_STATE: Final = -1
"""The writer as sender of a message; also the state of a writer that has ended, and "no change"."""

GAVE_UP: Final = (-2, 0)
"""Stands for the end that a failed recovery reports."""

_REFUSED: Final = BookieReadOnly.wire_code


class Message(NamedTuple):
    """A request to a bookie, or the answer to one."""

    kind: str
    sender: int
    """Number of the recoverer, or ``NO_STATE`` for the writer."""
    position: int
    bookie: str
    entry_id: int
    value: int = 0
    """Value of an answer: a LAC, or an error code."""


class ModelBookie(NamedTuple):
    """A bookie: bit set of its entries, fence and liveness. Everything that it accepts is durable."""

    held: int = 0
    fenced: bool = False
    alive: bool = True

    def holds(self, entry_id: int) -> bool:
        """Whether it holds the entry."""
        return bool(self.held >> entry_id & 1)


ModelLedger: TypeAlias = tuple[str, tuple[Fragment, ...], int, int]
"""State, fragments, last entry and length: the metadata that change here."""


FragmentChange: TypeAlias = tuple[Fragment, Fragment]
"""The fragment that the writer knows, and the one that it wants to write."""

ModelStep: TypeAlias = tuple[str, int]
"""Kind of step, and number of the message or bookie that it affects."""


class ModelWorld(NamedTuple):
    """A world. Its fields are numbers into the tables of the model."""

    writer: int
    """State of its machine, or ``NO_STATE``."""
    recoverers: tuple[int, ...]
    """State of each started recoverer; below zero: the end that it reported."""
    bookies: tuple[int, ...]
    messages: frozenset[int]
    ledger: int
    change: int
    """Ensemble change that is being written, or ``NO_STATE``."""
    batch_lacs: tuple[int, ...]
    """The LAC that each batch carries."""
    confirmed: int
    losses: int
    crashes: int

    def key(self) -> tuple[object, ...]:
        """Key that is equal for equal worlds, independent of the order of messages."""
        return (*self[:3], tuple(sorted(self.messages)), *self[4:])


T = TypeVar("T", bound=Hashable)


class _Table(Generic[T]):
    """Numbers values in the order of their first use."""

    def __init__(self) -> None:
        self._values: list[T] = []
        self._numbers: dict[T, int] = {}

    def number(self, value: T) -> int:
        """The number of ``value``."""
        number = self._numbers.setdefault(value, len(self._values))
        if number == len(self._values):
            self._values.append(value)
        return number

    def __getitem__(self, number: int) -> T:
        return self._values[number]


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """Size of a world, and what may go wrong in it."""

    quorum: Quorum = field(default_factory=lambda: Quorum(3, 3, 2))
    batches: int = 2
    recoverers: int = 2
    losses: int = 1
    crashes: int = 0
    replacements: int = 0
    late_answers: bool = True
    """Answers travel as messages. Otherwise they arrive at once or are lost; refusals always travel."""
    reads_fence: bool = True
    """False plants a defect: a recovery read does not fence."""

    @property
    def late_acks(self) -> bool:
        """Whether acks to the writer may be delayed.

        That matters if an ensemble change can discard acks. Otherwise a writer that gets its acks early can do
        everything that one with late acks can: batches with an older LAC are covered by appends before the ack.
        """
        return self.late_answers or self.replacements > 0


class Model:
    """Enumerates the steps of worlds of this size, and checks their invariants."""

    def __init__(self, limits: ModelLimits) -> None:
        self.limits = limits
        members = tuple(f"b{index}" for index in range(limits.quorum.ensemble))
        self._names = (*members, *(f"s{index}" for index in range(limits.replacements)))
        self._base = LedgerMetadata(LEDGER, limits.quorum, (Fragment(0, members),), "creator", 0)
        self._writers = Writers(limits.quorum, list(members))
        self._recoverers = Recoverers(limits.quorum.ensemble)
        self._answered_immediately = {"again"} if limits.late_answers else {"again", "fence", "read"}
        if not limits.late_acks:
            self._answered_immediately.add("add")
        self._bookies: _Table[ModelBookie] = _Table()
        self._messages: _Table[Message] = _Table()
        self._ledgers: _Table[ModelLedger] = _Table()
        self._changes: _Table[FragmentChange] = _Table()
        self._ends: _Table[tuple[int, int]] = _Table()
        self._matters = cache(self._may_matter)
        self._metadata = cache(self._as_metadata)
        self._moved_message = cache(self._message_after)
        self._moved_ledger = cache(self._ledger_after)
        self._moved_change = cache(self._change_after)

    def start(self) -> ModelWorld:
        """The first world: a new ledger with a writer that is connected to every bookie."""
        bookies = (self._bookies.number(ModelBookie()),) * len(self._names)
        return ModelWorld(
            self._writers.start(), (), bookies, frozenset(), self._ledgers.number(_brief(self._base)), NO_STATE, (), -1,
            self.limits.losses, self.limits.crashes,
        )  # fmt: skip

    def steps(self, world: ModelWorld) -> Iterator[tuple[ModelStep, ModelWorld]]:
        """All steps from a world, with the worlds that they lead to."""
        for step, reached in self._all_steps(world):
            yield step, self._without_useless_messages(reached)

    def describe(self, step: ModelStep) -> str:
        """Description of a step."""
        what, number = step
        if what in ("deliver", "lose", "lose the answer to"):
            return f"{what} {self._messages[number]}"
        return f"{what} {self._names[number] if what == 'crash' else number}"

    def _all_steps(self, world: ModelWorld) -> Iterator[tuple[ModelStep, ModelWorld]]:
        yield from self._writer_steps(world)
        yield from self._recoverer_steps(world)
        for number in sorted(world.messages):
            message = self._messages[number]
            rest = world._replace(messages=world.messages - {number})
            yield ("deliver", number), self._delivered(rest, message)
            if world.losses:
                lost = rest._replace(losses=world.losses - 1)
                yield ("lose", number), self._answered(lost, _failure(message))
                if message.kind in self._answered_immediately:
                    yield ("lose the answer to", number), self._at_bookie(lost, message, answered=False)
        if world.crashes:
            for at, number in enumerate(world.bookies):
                bookie = self._bookies[number]
                if bookie.alive:
                    crashed = self._with(world, at, bookie._replace(alive=False))
                    yield ("crash", at), crashed._replace(crashes=world.crashes - 1)

    # -- the writer -------------------------------------------------------------------

    def _writer_steps(self, world: ModelWorld) -> Iterator[tuple[ModelStep, ModelWorld]]:
        if world.writer == NO_STATE:
            return
        view = self._writers.view(world.writer)
        entry_id = len(world.batch_lacs)
        if entry_id < self.limits.batches:
            batch_lacs = world._replace(batch_lacs=(*world.batch_lacs, view.lac))
            yield ("append", entry_id), self._writer_event(batch_lacs, "submit", entry_id)
        if world.change != NO_STATE:
            yield ("write the change", world.change), self._change_written(world, *self._changes[world.change])
        elif found := self._replacements(view.fragment.bookies, view.wanted):
            yield ("begin to replace", found[0][0]), self._writer_event(world, "begin", *found)
        elif not view.pending:
            yield ("close at", view.lac), self._writer_closes(world, view.lac, view.lac_length)

    def _replacements(self, ensemble: Iterable[str], positions: Iterable[int]) -> tuple[tuple[int, str], ...]:
        """Replacement bookies for these positions."""
        candidates = (name for name in self._names[self.limits.quorum.ensemble :] if name not in ensemble)
        return tuple(zip(positions, candidates, strict=False))

    def _change_written(self, world: ModelWorld, known: Fragment, wanted: Fragment) -> ModelWorld:
        world = world._replace(change=NO_STATE)
        try:
            fresh = change_ensemble(self._metadata(world.ledger), known, wanted.first_entry_id, wanted.bookies)
        except TallybookError:
            return self._writer_event(world, "die")
        return self._writer_event(world._replace(ledger=self._ledgers.number(_brief(fresh))), "changed")

    def _writer_closes(self, world: ModelWorld, lac: int, length: int) -> ModelWorld:
        metadata, ended = self._metadata(world.ledger), world._replace(writer=NO_STATE, change=NO_STATE)
        try:
            if metadata.state is LedgerState.IN_RECOVERY:
                raise LedgerFenced("it is being recovered")
            return ended._replace(ledger=self._ledgers.number(_brief(close(metadata, lac, length))))
        except TallybookError:
            # A recovery has begun, or has closed the ledger at another end.
            return ended

    def _writer_event(self, world: ModelWorld, event: str, *facts: object) -> ModelWorld:
        """The world after an event of the writer's machine."""
        writer, actions = self._writers.step(world.writer, event, *facts)
        messages, confirmed, change = set(world.messages), world.confirmed, world.change
        for action in actions:
            if isinstance(action, writing.Send):
                bookie = self._writers.holder(writer, action.position)
                add = Message("add", NO_STATE, action.position, bookie, action.first_entry_id)
                messages.add(self._messages.number(add))
            elif isinstance(action, writing.Confirmed):
                confirmed = action.last_entry_id
            elif isinstance(action, writing.ChangeEnsemble):
                change = self._changes.number((action.known, action.wanted))
        if self._writers.view(writer).dead:
            writer = change = NO_STATE
        return world._replace(writer=writer, messages=frozenset(messages), confirmed=confirmed, change=change)

    # -- recoverers -------------------------------------------------------------------

    def _recoverer_steps(self, world: ModelWorld) -> Iterator[tuple[ModelStep, ModelWorld]]:
        for at, state in enumerate(world.recoverers):
            if state >= 0 and (waiting := self._recoverers.view(state).waiting):
                late = self._recoverers.step(state, "late", waiting)
                yield ("waits no longer: recoverer", at), self._recoverer_event(world, at, *late)
        number = len(world.recoverers)
        if number == self.limits.recoverers:
            return
        metadata = begin_recovery(self._metadata(world.ledger))
        begun = world._replace(recoverers=(*world.recoverers, NO_STATE))
        if metadata.closed:
            end = (metadata.last_entry_id, metadata.length)
            yield ("finds it closed: recoverer", number), self._ended(begun, number, end)
            return
        state, actions = self._recoverers.start(metadata)
        begun = begun._replace(ledger=self._ledgers.number(_brief(metadata)))
        yield ("begins: recoverer", number), self._recoverer_event(begun, number, state, actions)

    def _recoverer_event(
        self, world: ModelWorld, number: int, state: int, actions: tuple[recovery.RecoveryAction, ...]
    ) -> ModelWorld:
        """The world after the actions of a recoverer's machine."""
        messages = set(world.messages)
        metadata = self._recoverers.view(state).metadata
        asked = metadata.last_fragment.bookies
        for action in actions:
            match action:
                case recovery.FenceMember(position):
                    request = Message("fence", number, position, asked[position], -1)
                case recovery.ReadMember(position, entry_id):
                    request = Message("read", number, position, asked[position], entry_id)
                case recovery.WriteBack(position, bookie, entry_id, _):
                    request = Message("again", number, position, bookie, entry_id)
                case recovery.AwaitStragglers():
                    continue
                case recovery.FindReplacements(ensemble, positions):
                    found = self._replacements(ensemble, positions)
                    return self._recoverer_event(world, number, *self._recoverers.step(state, "replacements", *found))
                case recovery.ReadEnd(entry_id):
                    event = self._end_of(world, metadata, entry_id)
                    return self._recoverer_event(world, number, *self._recoverers.step(state, *event))
                case recovery.Close():
                    return self._recoverer_closes(world, number, metadata, action)
                case recovery.FindLast() | recovery.Failed():
                    return self._ended(world, number, GAVE_UP)
                case unknown:
                    assert_never(unknown)
            messages.add(self._messages.number(request))
        recoverers = (*world.recoverers[:number], state, *world.recoverers[number + 1 :])
        return world._replace(recoverers=recoverers, messages=frozenset(messages))

    def _end_of(self, world: ModelWorld, metadata: LedgerMetadata, entry_id: int) -> tuple[str, *tuple[int, ...]]:
        """Event of a read of the last batch at the bookies that the metadata name."""
        for name in metadata.bookies_of(entry_id):
            bookie = self._bookies[world.bookies[self._names.index(name)]]
            if bookie.alive and bookie.holds(entry_id):
                return ("end", entry_id, world.batch_lacs[entry_id])
        return ("no end",)

    def _recoverer_closes(
        self, world: ModelWorld, number: int, known: LedgerMetadata, end: recovery.Close
    ) -> ModelWorld:
        """One attempt to close. If the last fragment changed it gives up; a restart equals another recoverer."""
        try:
            closed = closed_at(known, replace(end, missed=()), self._metadata(world.ledger))
        except LastFragmentChanged:
            return self._ended(world, number, GAVE_UP)
        world = world._replace(ledger=self._ledgers.number(_brief(closed)))
        return self._ended(world, number, (closed.last_entry_id, closed.length))

    def _ended(self, world: ModelWorld, number: int, end: tuple[int, int]) -> ModelWorld:
        reported = -1 - self._ends.number(end)
        return world._replace(recoverers=(*world.recoverers[:number], reported, *world.recoverers[number + 1 :]))

    # -- messages ---------------------------------------------------------------------

    def _delivered(self, world: ModelWorld, message: Message) -> ModelWorld:
        if message.kind in _REQUESTS:
            return self._at_bookie(world, message)
        if message.sender == NO_STATE:
            if self._writers.holder(world.writer, message.position) != message.bookie:
                return world
            if message.value:
                return self._writer_event(world, "refused", message.position, message.entry_id, message.value)
            return self._writer_event(world, "acked", message.position, message.entry_id, message.bookie)
        facts: tuple[int, ...] = (message.position, message.entry_id)
        if message.kind in ("fenced", "not fenced"):
            facts = (message.position, message.value)
        elif message.kind == "copy":
            facts = (*facts, message.value)
        state = world.recoverers[message.sender]
        return self._recoverer_event(world, message.sender, *self._recoverers.step(state, message.kind, *facts))

    def _at_bookie(self, world: ModelWorld, message: Message, *, answered: bool = True) -> ModelWorld:
        at = self._names.index(message.bookie)
        bookie = self._bookies[world.bookies[at]]
        if not bookie.alive:
            return self._answered(world, _failure(message))
        value = 0
        match message.kind:
            case "add" if bookie.fenced:
                kind, value = "acked", LedgerFenced.wire_code
            case "add" | "again":
                bookie = bookie._replace(held=bookie.held | 1 << message.entry_id)
                kind = "acked" if message.kind == "add" else "held again"
            case "fence":
                bookie = bookie._replace(fenced=True)
                kind, value = "fenced", self._lac(world, bookie)
            case _:
                bookie = bookie._replace(fenced=bookie.fenced or self.limits.reads_fence)
                kind = "copy" if bookie.holds(message.entry_id) else "absent"
                value = world.batch_lacs[message.entry_id] if kind == "copy" else 0
        answer = message._replace(kind=kind, value=value) if answered else _failure(message)
        return self._answered(self._with(world, at, bookie), answer)

    def _answered(self, world: ModelWorld, answer: Message) -> ModelWorld:
        """Send an answer, or deliver it at once if a delay cannot matter.

        A late answer to a recovery add is equivalent to a late request: the wait for stragglers may end before either.
        """
        if answer.sender == NO_STATE:
            if not answer.value and "add" in self._answered_immediately:
                return self._delivered(world, answer) if world.writer != NO_STATE else world
        elif not self.limits.late_answers or answer.kind in ("held again", "not held"):
            sender = world.recoverers[answer.sender]
            return self._delivered(world, answer) if self._is_heard(answer, sender) else world
        return world._replace(messages=world.messages | {self._messages.number(answer)})

    def _lac(self, world: ModelWorld, bookie: ModelBookie) -> int:
        return max((lac for entry_id, lac in enumerate(world.batch_lacs) if bookie.holds(entry_id)), default=-1)

    def _with(self, world: ModelWorld, at: int, bookie: ModelBookie) -> ModelWorld:
        number = self._bookies.number(bookie)
        return world._replace(bookies=(*world.bookies[:at], number, *world.bookies[at + 1 :]))

    def _without_useless_messages(self, world: ModelWorld) -> ModelWorld:
        """The world without messages that have no effect any more."""
        kept = []
        for number in world.messages:
            message = self._messages[number]
            sender = world.writer if message.sender == NO_STATE else world.recoverers[message.sender]
            if self._matters(number, sender, world.bookies[self._names.index(message.bookie)]):
                kept.append(number)
        return world if len(kept) == len(world.messages) else world._replace(messages=frozenset(kept))

    def _may_matter(self, number: int, sender: int, bookie_number: int) -> bool:
        message, bookie = self._messages[number], self._bookies[bookie_number]
        heard = self._is_heard(message, sender)
        if heard or message.kind not in _REQUESTS:
            return heard
        if not bookie.alive:
            return False
        if message.kind == "add":
            return not bookie.fenced and not bookie.holds(message.entry_id)
        if message.kind == "again":
            return not bookie.holds(message.entry_id)
        return not bookie.fenced and (message.kind == "fence" or self.limits.reads_fence)

    def _is_heard(self, message: Message, sender: int) -> bool:
        """Whether an answer still matters to its receiver."""
        if message.sender == NO_STATE or sender < 0:
            return sender >= 0
        view = self._recoverers.view(sender)
        if message.kind in ("fence", "fenced", "not fenced"):
            return view.phase is Phase.FENCING
        if message.kind in ("again", "held again", "not held"):
            return message.entry_id in view.writing
        return view.phase is Phase.READING and view.entry_id == message.entry_id

    def _as_metadata(self, ledger: int) -> LedgerMetadata:
        state, fragments, last, length = self._ledgers[ledger]
        state_is = LedgerState(state)
        return replace(self._base, state=state_is, fragments=fragments, last_entry_id=last, length=length)

    # -- symmetry ---------------------------------------------------------------------

    def normalized(self, world: ModelWorld) -> ModelWorld:
        """Normalize a world: of all worlds that differ only in names, the one with the least key."""
        quorum = self.limits.quorum
        if quorum.striped:
            return world
        seen: list[list[tuple[object, ...]]] = [[] for _ in range(quorum.ensemble)]
        for number in world.messages:
            message = self._messages[number]
            seen[message.position].append((message.kind, message.entry_id, message.value))
        signatures = tuple((world.bookies[at], sorted(seen[at])) for at in range(quorum.ensemble))
        senders = [tuple(range(len(world.recoverers)))]
        if len(world.recoverers) == 2:
            senders.append((1, 0))
        likes = (self._exchanged(world, order, who) for order in arrangements(signatures) for who in senders)
        return min(likes, key=ModelWorld.key)

    def _exchanged(self, world: ModelWorld, order: Order, senders: Order) -> ModelWorld:
        """The world after an exchange of bookies and of recoverers."""
        bookies = list(world.bookies)
        for at, to in enumerate(order):
            bookies[to] = world.bookies[at]
        recoverers = [NO_STATE] * len(senders)
        for at, to in enumerate(senders):
            state = world.recoverers[at]
            recoverers[to] = state if state < 0 else self._recoverers.moved(state, order)
        return world._replace(
            writer=world.writer if world.writer == NO_STATE else self._writers.moved(world.writer, order),
            recoverers=tuple(recoverers),
            bookies=tuple(bookies),
            messages=frozenset(self._moved_message(number, order, senders) for number in world.messages),
            ledger=self._moved_ledger(world.ledger, order),
            change=world.change if world.change == NO_STATE else self._moved_change(world.change, order),
        )

    def _message_after(self, number: int, order: Order, senders: Order) -> int:
        message = self._messages[number]
        sender = message.sender if message.sender == NO_STATE else senders[message.sender]
        moved = message._replace(
            sender=sender, position=order[message.position], bookie=renamed(message.bookie, order)
        )  # fmt: skip
        return self._messages.number(moved)

    def _ledger_after(self, number: int, order: Order) -> int:
        state, fragments, last, length = self._ledgers[number]
        moved = tuple(moved_fragment(each, order) for each in fragments)
        return self._ledgers.number((state, moved, last, length))

    def _change_after(self, number: int, order: Order) -> int:
        known, wanted = self._changes[number]
        return self._changes.number((moved_fragment(known, order), moved_fragment(wanted, order)))

    # -- what must hold ---------------------------------------------------------------

    def broken_by(self, before: ModelWorld, world: ModelWorld) -> str | None:
        """The invariant that the step from ``before`` to ``world`` violates, or ``None``."""
        if before.ledger != world.ledger and self._ledgers[before.ledger][0] == LedgerState.CLOSED.value:
            return "I3: a closed ledger changed"
        if world.confirmed < before.confirmed:
            return f"I6: the last add confirmed fell from {before.confirmed} to {world.confirmed}"
        return None

    def broken(self, world: ModelWorld) -> str | None:
        """The invariant that ``world`` violates, or ``None``."""
        state, fragments, last, length = self._ledgers[world.ledger]
        closed = state == LedgerState.CLOSED.value
        if closed and world.confirmed > last:
            return f"I2: entry {world.confirmed} is confirmed, and the ledger ends at {last}"
        for entry_id in range((last if closed else world.confirmed) + 1):
            fragment = next(each for each in reversed(fragments) if each.first_entry_id <= entry_id)
            holders = [
                at for at, name in enumerate(fragment.bookies)
                if self._bookies[world.bookies[self._names.index(name)]].holds(entry_id)
            ]  # fmt: skip
            if not self.limits.quorum.acked(holders, entry_id):
                return f"I10: entry {entry_id} is on too few of the bookies that the metadata name"
        ends = {self._ends[-1 - end] for end in world.recoverers if end < 0} - {GAVE_UP}
        if ends and ends != {(last, length)}:
            return f"I4: recoverers report {sorted(ends)}, and the ledger ends at {last}"
        return None


_REQUESTS: Final = frozenset({"add", "fence", "read", "again"})
_FAILURES: Final = {
    "fence": "not fenced", "fenced": "not fenced", "read": "not read", "copy": "not read", "absent": "not read",
    "again": "not held", "held again": "not held",
}  # fmt: skip


def _failure(message: Message) -> Message:
    """The failure that the sender gets if its request or the answer is lost."""
    if message.sender == NO_STATE:
        return message._replace(kind="acked", value=_REFUSED)
    return message._replace(kind=_FAILURES.get(message.kind, message.kind), value=0)


def _brief(metadata: LedgerMetadata) -> ModelLedger:
    return metadata.state.value, metadata.fragments, metadata.last_entry_id, metadata.length
