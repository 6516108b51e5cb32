"""The writer's failure detector: when a member of the ensemble has failed, and when the ack quorum is lost.

UP, owes an ack for too long              failed
UP, busy for too long, others accept      failed; if all are busy, it is back-pressure
UP, far behind, others are overloaded     waited for, while it catches up
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from tallybook.core.errors import EntryTooLarge, NotEnoughBookies, TallybookError
from tallybook.core.quorum import Quorum

from ...refusals import refusal_of_all
from ..policy import URGENT_SHARE, WriterPolicy
from .lag import WriterLag
from .members import EnsemblePosition, MemberState

SLOW_SHARE: Final = 32
"""A member that has owed an ack for this part of the add timeout is slow: 0.3 s. A healthy one needs milliseconds."""
CATCH_UP_TIMEOUTS: Final = 3
"""A member that is far behind must ack more than the lag limit within this many add timeouts."""


class FailureDetector:
    """Judges the members of one ensemble.

    Args:
        members: the state of each ensemble position, as the machine keeps it.
        lag: how much may be retained for a member.
    """

    def __init__(
        self, members: Sequence[EnsemblePosition], quorum: Quorum, rules: WriterPolicy, lag: WriterLag
    ) -> None:
        self._lag = lag
        self._members = members
        self._quorum = quorum
        self._rules = rules

    # -- one member -------------------------------------------------------------------

    def failed(self, now: float) -> tuple[int, ...]:
        """Positions whose bookies have failed and should be replaced."""
        has_quorum = self.has_quorum
        limit_s = self.away_limit_s
        failed = (at for at, member in enumerate(self._members) if member.failed(now, limit_s))
        if has_quorum and self._rules.delay_changes:
            # An absent bookie may come back, a refusing one does not change its mind.
            return tuple(at for at in failed if self._members[at].refuses)
        return tuple(failed)

    @property
    def away_limit_s(self) -> float:
        """How long a member may be disconnected before a replacement is searched."""
        return self._rules.away_timeout_s / (1 if self.has_quorum else URGENT_SHARE)

    def overdue(self, at: int, now: float) -> bool:
        """Whether the member has owed an ack for too long."""
        oldest = self._members[at].outbox.oldest()
        return oldest is not None and now - oldest >= self._rules.add_timeout_s

    def busy_for_too_long(self, at: int, now: float) -> bool:
        """Whether the member has been busy for too long while a quorum of others accepts batches."""
        busy_since = self._members[at].busy_since
        if busy_since is None or now - busy_since < self._rules.add_timeout_s:
            return False
        accepting = [
            index
            for index, other in enumerate(self._members)
            if index != at and other.state is MemberState.UP and other.busy_since is None
        ]
        return self._quorum.writable(accepting)

    def too_far_behind(self, at: int, now: float) -> bool:
        """Whether to stop retaining batches for the member. If others are overloaded, too, wait while it catches up.

        Updates ``behind_since`` of the member, so call it once for each event.
        """
        member, rules = self._members[at], self._rules
        behind = member.lag_bytes > rules.lag_limit_bytes or self._slowest_above_limit(member, now)
        if not member.retained_for or not behind:
            member.behind_since = None
            return False
        if member.behind_since is None or member.caught_up_bytes > rules.lag_limit_bytes:
            member.behind_since, member.caught_up_bytes = now, 0
        answers = member.state is MemberState.UP and member.serves
        in_time = now - member.behind_since < CATCH_UP_TIMEOUTS * rules.add_timeout_s
        return not (answers and in_time and self._others_overloaded(at, now))

    def _slowest_above_limit(self, member: EnsemblePosition, now: float) -> bool:
        """Whether to give up the member for what all writers of the client retain: the slowest one, if it is slow."""
        if not self._lag.above_limit or member.lag_bytes < max(each.lag_bytes for each in self._members):
            return False
        since = member.outbox.oldest() if member.state is MemberState.UP else member.away_since
        return since is not None and now - since >= self._rules.add_timeout_s / SLOW_SHARE

    def _others_overloaded(self, at: int, now: float) -> bool:
        """Whether so many other members were busy recently that the rest is no quorum."""
        since = now - self._rules.add_timeout_s
        serving = [
            index
            for index, other in enumerate(self._members)
            if index != at and other.state is MemberState.UP and other.serves
        ]
        calm = [index for index in serving if self._members[index].busy_at <= since]
        return len(calm) < len(serving) and not self._quorum.writable(calm)

    def _lives(self, member: EnsemblePosition, now: float) -> bool:
        """Whether the member may still ack. A flapping member that only reconnects does not count for ever."""
        return member.serves or (member.retained_for and now - member.away_since < self._rules.add_timeout_s)

    # -- the quorum -------------------------------------------------------------------

    @property
    def has_quorum(self) -> bool:
        """Whether the connected members that are not doubted can form every ack quorum."""
        present = [at for at, each in enumerate(self._members) if each.state is MemberState.UP and not each.doubted]
        return self._quorum.writable(present)

    @property
    def quorum_lost(self) -> bool:
        """Whether some write set has no ack quorum of serving members, or of connected ones that are not doubted."""
        return not self.has_quorum or self._quorum_lost_at() is not None

    def _quorum_lost_at(self) -> float | None:
        """Since when some write set has fewer than Qa serving members; ``None`` if all have enough."""
        lost_at: float | None = None
        for write_set in self._quorum.write_sets():
            unserved = sorted(self._members[at].unserved_since for at in write_set if not self._members[at].serves)
            missing = len(unserved) - (self._quorum.write_quorum - self._quorum.ack_quorum)
            if missing > 0:
                # The loss of this member left too few.
                since = unserved[len(unserved) - missing]
                lost_at = since if lost_at is None else min(lost_at, since)
        return lost_at

    def hopeless(self, since: float, now: float, *, joining: Collection[int], no_replacement_at: float) -> bool:
        """Whether a batch has waited a timeout without an ack quorum; ``hopeful_s`` if members may still ack.

        Args:
            since: when the batch was submitted.
            joining: positions that are being replaced.
            no_replacement_at: time of the last search that found no replacement.
        """
        lost_at, rules = self._quorum_lost_at(), self._rules
        if lost_at is None:
            return False
        hopeful = [at for at, member in enumerate(self._members) if at in joining or self._lives(member, now)]
        hope, limit_s = self._quorum.writable(hopeful), rules.add_timeout_s
        if rules.max_changes and not rules.deferred:
            since = max(since, lost_at)
            # A search before the loss of the quorum does not count.
            limit_s = rules.hopeful_s if hope or no_replacement_at < lost_at else limit_s
        elif hope:
            return False
        return now - since >= limit_s

    def loss_of_quorum(self, ledger_id: int) -> TallybookError:
        """The error that ends a writer without an ack quorum: the refusal of the lost members, if all refuse alike."""
        lost = [member for member in self._members if not member.serves]
        message = f"ledger {ledger_id}: no ack quorum without {', '.join(member.described for member in lost)}"
        if lost and all(member.refused_with is EntryTooLarge for member in lost):
            return EntryTooLarge(message)
        return refusal_of_all([member.unreached for member in lost], message) or NotEnoughBookies(message)
