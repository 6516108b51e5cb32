"""Appends of one ledger, from payload to confirmation.

    admissible -> take_room -> gather -> accumulator -> (sealed) batch -> submit -> confirmed -> awaiters

What a handle offers its users stands on this. An append is three steps: whether the entry may be
appended at all, room for it in the client's byte budget, and then, without a wait in between, its
id and its place in a batch.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator

from tallybook.core.batch import Buffer, encode_batch, encoded_bytes
from tallybook.core.config import ClientSettings
from tallybook.core.errors import (
    Busy,
    EntryTooLarge,
    InvalidArgument,
    InvariantViolation,
    LedgerClosed,
    Outcome,
    RequestTimeout,
    TallybookError,
)
from tallybook.core.limits import BATCH_TABLE_ROW_BYTES
from tallybook.metadata.model import LedgerMetadata
from tallybook.runtime.clock import Clock
from tallybook.runtime.lifetime import Lifetime

from ..budget import ByteBudget
from ..deeds import Deeds
from .accumulator import Accumulator
from .machine import WriterMachine
from .pending import AppendGroup, PendingAppend


class Appends:
    """Gathers, seals and settles the appends of one handle.

    Args:
        machine: the rules of writing.
        metadata: of the ledger, as the handle found it.
        digest_key: signs batches, where the ledger's digest is an HMAC.
        soon: calls in one of the next iterations of the event loop.
    """

    def __init__(
        self,
        machine: WriterMachine,
        metadata: LedgerMetadata,
        settings: ClientSettings,
        clock: Clock,
        budget: ByteBudget,
        digest_key: bytes | None,
        deeds: Deeds,
        soon: Callable[[Callable[[], None]], None],
    ) -> None:
        self._deeds = deeds
        self._soon = soon
        self._machine = machine
        self._settings = settings
        self._clock = clock
        self._max_entry_bytes = int(settings.max_entry_bytes)
        self._alone_bytes = encoded_bytes(1, 0, digest=digest_key is not None)
        """What a batch of one entry has besides its payload."""
        self._digest_key = digest_key
        self._accumulator = Accumulator(metadata.quorum, settings.max_batch_bytes, digest=digest_key is not None)
        self._groups: deque[AppendGroup] = deque()
        self._payload_bytes = 0
        self._flush_scheduled = False
        self._idle = asyncio.Event()
        self._awaiting_limits: list[Callable[[], None]] = []
        self.budget = budget
        """What all ledgers of the client may hold together."""
        self.metadata = metadata
        """As of the last change of the ensemble."""
        self.closing = False
        """Set once no more is to be taken."""
        self.lifetime = Lifetime(f"ledger {metadata.ledger_id}: its writer", error=LedgerClosed)
        """Of the handle."""
        self.submit: Callable[[int, int, int, bytes], None] = _not_started
        """Sends a sealed batch: its first and last entry id, its payload bytes, and itself."""
        self.end: Callable[[TallybookError], None] = _nothing_to_end
        """Ends the handle, for an entry that no batch may hold."""
        self.on_end: list[Callable[[TallybookError], None]] = []
        """Called once, when nothing more can be appended: closed, dead or abandoned."""

    @property
    def next_entry_id(self) -> int:
        """The id the next append gets."""
        return self._accumulator.next_entry_id

    # -- the steps of an append -------------------------------------------------------

    def admissible(self, payload: Buffer) -> int:
        """What ``payload`` takes of the client's budget, if it can be appended now. First step of an append.

        Raises:
            As ``append``.
        """
        self.refuse_after_end()
        if type(payload) is not bytes and not isinstance(payload, bytes | bytearray | memoryview):
            raise InvalidArgument(f"an entry is bytes, not {type(payload).__name__}")
        size = payload.nbytes if isinstance(payload, memoryview) else len(payload)
        if size > self._max_entry_bytes or size + self._alone_bytes > self._machine.sizes.max_bytes:
            raise EntryTooLarge(self._too_large(size))
        return size + BATCH_TABLE_ROW_BYTES

    @property
    def max_entry_bytes(self) -> int:
        """The largest entry that is taken now: less than the setting where a bookie of the ensemble takes less."""
        return min(self._max_entry_bytes, self._machine.sizes.max_bytes - self._alone_bytes)

    @property
    def limits_known(self) -> bool:
        """Whether the bookies have said what they take: until then nothing is sent."""
        return self._machine.sizes.known

    def when_limits_known(self, tell: Callable[[], None]) -> None:
        """Call back soon after they have, or after the end of the handle."""
        if self._machine.sizes.known or self._machine.error is not None:
            self._soon(tell)
        else:
            self._awaiting_limits.append(tell)

    def _tell_limits_known(self) -> None:
        awaiting, self._awaiting_limits = self._awaiting_limits, []
        for tell in awaiting:
            # Not from here: what it raises must not keep the writer from what it has to do next.
            self._soon(tell)

    def _too_large(self, size: int) -> str:
        return f"ledger {self._machine.ledger_id}: an entry of {size} bytes exceeds the limit of {self.max_entry_bytes}"

    def refuse_after_end(self) -> None:
        """Nothing is taken by a handle that is closed or dead.

        Raises:
            As ``append``.
        """
        if self.closing or self._machine.error is not None:
            raise self._refusal(Outcome.NOT_DONE)

    @property
    def _refusing(self) -> bool:
        return self.closing or self._machine.error is not None

    def _refusal(self, outcome: Outcome) -> TallybookError:
        """Why nothing more is taken: of the kind that ended the handle, but what was not sent is not in doubt."""
        ended = self._machine.error or LedgerClosed(f"ledger {self._machine.ledger_id} is closed")
        return type(ended)(ended.message, outcome=outcome)

    async def take_room(self, size: int, outcome: Outcome = Outcome.NOT_DONE) -> None:
        """Take ``size`` bytes of the budget, waiting for them; ``outcome`` is that of the whole call if it fails here.

        Second step of an append. Raises: As ``append``.
        """
        try:
            async with asyncio.timeout(self._settings.add_timeout_ms / 1000):
                with self.lifetime.use(outcome):
                    await self.budget.take(size)
        except TimeoutError:
            message = f"ledger {self._machine.ledger_id}: no room for another append within the add timeout"
            raise RequestTimeout(message, outcome=outcome) from None
        if self._refusing:
            self.budget.give(size)
            raise self._refusal(outcome)

    def no_room(self) -> Busy:
        """What who does not wait for room is told."""
        budget, settings = self.budget, self._settings
        round_bytes = settings.max_in_flight_batches * settings.max_batch_bytes
        message = f"ledger {self._machine.ledger_id}: {budget.taken_bytes} of {budget.limit_bytes} bytes are pending"
        return Busy(message, retry_after_ms=budget.retry_after_ms(round_bytes))

    def give_room(self, size: int) -> None:
        """Give back what ``take_room`` took, instead of the last step."""
        self.budget.give(size)

    def gather(self, payload: Buffer) -> PendingAppend:
        """Give the entry the next id and send it off. Last step of an append: there is room for it already."""
        pending = self._accumulator.add(payload if isinstance(payload, bytes) else bytes(payload))
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._soon(self._flush)
        return pending

    def _flush(self) -> None:
        """Seal and send groups: at once while nothing is unconfirmed, and then the fuller, the more is.

        Whatever stays behind leaves with the next confirmation, so nothing waits for a timer. A batch costs a bookie
        about the same, small or large: under load, few large ones are both more entries a second and less latency.
        """
        self._flush_scheduled = False
        machine, limit = self._machine, self._settings.max_in_flight_batches
        if not machine.sizes.known:
            # Nothing can be confirmed yet, and a batch that was sent can be cut no more.
            return
        self._accumulator.limit(min(self._settings.max_batch_bytes, machine.sizes.max_bytes))
        while machine.error is None and (in_flight := machine.unconfirmed_batches) < limit:
            if in_flight and not self._accumulator.worth_sending(in_flight / limit):
                return
            group = self._accumulator.take()
            if group is None:
                return
            self._seal(group)

    def _seal(self, group: AppendGroup) -> None:
        """Send a group: as one batch, or as several where a bookie takes less than the group had room for."""
        digest, limit = self._digest_key is not None, self._machine.sizes.max_bytes
        room, held, first = limit - encoded_bytes(0, 0, digest=digest), group.held_bytes, group.first_entry_id
        pieces = [group.payloads] if held <= room else list(_pieces(group.payloads, room))
        self._groups.append(group)
        largest = max(len(payloads[0]) for payloads in pieces)
        if largest > self.max_entry_bytes:
            # It was taken before the bookies had said what they take.
            self.budget.give(held)
            self.end(EntryTooLarge(self._too_large(largest)))
            return
        batches = []
        for payloads in pieces:
            payload_bytes = sum(map(len, payloads))
            self._payload_bytes += payload_bytes
            batch = encode_batch(
                self._machine.ledger_id,
                first,
                payloads,
                lac=self._machine.lac,
                ledger_length=self._payload_bytes,
                written_at_us=self._clock.wall_us(),
                digest_key=self._digest_key,
            )
            batches.append((first, first + len(payloads) - 1, payload_bytes, batch))
            first += len(payloads)
        # The encoded batches are what is held from here on; the payloads may go.
        self.budget.exchange(held, sum(len(batch) for *_, batch in batches))
        group.seal()
        group.sealed_at = self._clock.monotonic()
        for each in batches:
            if self._machine.error is None:
                self.submit(*each)
            else:
                self.budget.give(len(each[-1]))

    # -- what the driver tells --------------------------------------------------------

    def confirmed(self, last_entry_id: int) -> None:
        """Settle every group up to ``last_entry_id``."""
        now = self._clock.monotonic()
        while self._groups and self._groups[0].last_entry_id <= last_entry_id:
            group = self._groups.popleft()
            self.budget.turned_round(now - group.sealed_at)
            group.complete()
        self._flush()
        if not self._groups and not self._accumulator:
            self._idle.set()

    def ensemble_changed(self, metadata: LedgerMetadata) -> None:
        """Remember what the metadata are now."""
        self._deeds.ensemble_changes += 1
        self.metadata = metadata

    def sizes_known(self) -> None:
        """Send what waited until it was known how large a batch may be."""
        self._flush()
        self._tell_limits_known()

    def released(self, size: int) -> None:
        """Give bytes back to the client's budget."""
        self.budget.give(size)

    def died(self, error: TallybookError) -> None:
        """Fail whatever is not confirmed."""
        for group in self._groups:
            group.complete(error)
        self._groups.clear()
        for group in self._accumulator.take_all():
            self.budget.give(group.held_bytes)
            group.complete(error)
        self._idle.set()
        for tell in self.on_end:
            tell(error)
        self._tell_limits_known()

    # -- the end ----------------------------------------------------------------------

    async def finish(self) -> None:
        """Wait until everything that was appended is settled.

        Raises:
            RequestTimeout: it takes longer than the close timeout.
        """
        timeout_s = 3 * self._settings.add_timeout_ms / 1000
        try:
            async with asyncio.timeout(timeout_s):
                while self._groups or self._accumulator:
                    self._idle.clear()
                    self._flush()
                    await self._idle.wait()
        except TimeoutError:
            raise RequestTimeout(
                f"ledger {self._machine.ledger_id}: appends still pending after {timeout_s:.0f} s"
            ) from None


def _not_started(_first: int, _last: int, _payload_bytes: int, _batch: bytes) -> None:
    raise InvariantViolation("a batch was sealed before its writer has started")


def _nothing_to_end(_error: TallybookError) -> None:
    raise InvariantViolation("a handle was to end before its writer has started")


def _pieces(payloads: list[bytes], room: int) -> Iterator[list[bytes]]:
    """Cut a run of payloads into pieces that fit ``room``, with one entry each at least."""
    piece: list[bytes] = []
    used = 0
    for payload in payloads:
        size = len(payload) + BATCH_TABLE_ROW_BYTES
        if piece and used + size > room:
            yield piece
            piece, used = [], 0
        piece.append(payload)
        used += size
    yield piece
