"""Decides over one ``force`` of a writer with deferred sync: which members are still awaited, and how it ends. Pure.

Every member must make durable what it has acked. A member that is busy or unavailable is asked again, as long as it has
not restarted since it acked. Any other failure ends the writer: an acked entry may be lost, and the LAC cannot pass it.
"""

from __future__ import annotations

from tallybook.core.errors import Busy, NotEnoughBookies, PeerError, StorageError, TallybookError

from .ack_codes import CONNECTION_CODES
from .actions import WriterAction
from .machine import WriterMachine


def requested_pause_s(error: TallybookError) -> float | None:
    """The pause that a busy member asks for; ``None``: it asks for none."""
    return error.retry_after_ms / 1000 if isinstance(error, Busy) else None


class ForceRound:
    """One ``force``: moves the LAC to the entries that were confirmed when it began."""

    def __init__(self, machine: WriterMachine) -> None:
        self._machine = machine
        self._through, self._length = machine.confirmed, machine.confirmed_length
        self._awaited = set(range(machine.quorum.ensemble))

    def awaits(self, position: int) -> bool:
        """Whether the member at a position has to be asked (again)."""
        return self._machine.error is None and position in self._awaited

    def done(self, position: int) -> list[WriterAction]:
        """The member has made its entries durable; the last one moves the LAC."""
        self._awaited.discard(position)
        return [] if self._awaited else self._machine.forced(self._through, self._length)

    def failed(self, position: int, error: TallybookError, *, connected: bool, now: float) -> list[WriterAction]:
        """The request to a member failed.

        Args:
            connected: whether the connection that it was sent over is still that of the member.
        """
        if not isinstance(error, PeerError):
            return self._end(position, error)
        lost = connected and error.wire_code in CONNECTION_CODES
        return self._machine.disconnected(position, now) if lost else []

    def timed_out(self, position: int, error: TallybookError) -> list[WriterAction]:
        """The member has failed for the add timeout, at last with ``error``."""
        return self._end(position, error)

    def _end(self, position: int, error: TallybookError) -> list[WriterAction]:
        if isinstance(error, PeerError | StorageError):
            reason = f"{self._machine.bookie_of(position)} could not make durable what it had acked: {error.message}"
            error = NotEnoughBookies(f"ledger {self._machine.ledger_id}: {reason}")
        return self._machine.die(error)
