"""The writer's failure detector: when a member of the ensemble has failed, and when the ack quorum is lost.

UP, owes an ack for too long              failed
UP, busy for too long, others accept      failed; if all are busy, it is back-pressure
UP, far behind, others are overloaded     waited for, while it catches up
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tallybook.core.errors import EntryTooLarge, NotEnoughBookies, TallybookError
from tallybook.core.quorum import Quorum

from ...refusals import refusal_of_all
from ..policy import WriterPolicy
from .members import EnsemblePosition, MemberState

CATCH_UP_TIMEOUTS: Final = 3
"""A member that is far behind must ack more than the lag limit within this many add timeouts."""


def overdue(member: EnsemblePosition, rules: WriterPolicy, now: float) -> bool:
    """Whether the member has owed an ack for too long."""
    oldest = member.outbox.oldest()
    return oldest is not None and now - oldest >= rules.add_timeout_s


def busy_for_too_long(
    at: int, members: Sequence[EnsemblePosition], quorum: Quorum, rules: WriterPolicy, now: float
) -> bool:
    """Whether the member has been busy for too long while a quorum of others accepts batches."""
    busy_since = members[at].busy_since
    if busy_since is None or now - busy_since < rules.add_timeout_s:
        return False
    accepting = [
        index
        for index, other in enumerate(members)
        if index != at and other.state is MemberState.UP and other.busy_since is None
    ]
    return quorum.writable(accepting)


def too_far_behind(
    at: int, members: Sequence[EnsemblePosition], quorum: Quorum, rules: WriterPolicy, now: float
) -> bool:
    """Whether to stop retaining batches for the member. If others are overloaded, too, wait while it catches up.

    Updates ``behind_since`` of the member, so call it once for each event.
    """
    member = members[at]
    if not member.retained_for or member.lag_bytes <= rules.lag_limit_bytes:
        member.behind_since = None
        return False
    if member.behind_since is None or member.caught_up_bytes > rules.lag_limit_bytes:
        member.behind_since, member.caught_up_bytes = now, 0
    answers = member.state is MemberState.UP and member.serves
    in_time = now - member.behind_since < CATCH_UP_TIMEOUTS * rules.add_timeout_s
    return not (answers and in_time and _others_overloaded(at, members, quorum, rules, now))


def _others_overloaded(
    at: int, members: Sequence[EnsemblePosition], quorum: Quorum, rules: WriterPolicy, now: float
) -> bool:
    """Whether so many other members were busy recently that the rest is no quorum."""
    since = now - rules.add_timeout_s
    serving = [
        index for index, other in enumerate(members) if index != at and other.state is MemberState.UP and other.serves
    ]
    calm = [index for index in serving if members[index].busy_at <= since]
    return len(calm) < len(serving) and not quorum.writable(calm)


def quorum_lost_at(members: Sequence[EnsemblePosition], quorum: Quorum) -> float | None:
    """Since when some write set has fewer than Qa serving members; ``None`` if all have enough."""
    lost_at: float | None = None
    for write_set in quorum.write_sets():
        unserved = sorted(members[at].unserved_since for at in write_set if not members[at].serves)
        missing = len(unserved) - (quorum.write_quorum - quorum.ack_quorum)
        if missing > 0:
            # The loss of this member left too few.
            since = unserved[len(unserved) - missing]
            lost_at = since if lost_at is None else min(lost_at, since)
    return lost_at


def lives(member: EnsemblePosition, rules: WriterPolicy, now: float) -> bool:
    """Whether the member may still ack. A flapping member that only reconnects does not count for ever."""
    return member.serves or (member.retained_for and now - member.away_since < rules.add_timeout_s)


def loss_of_quorum(ledger_id: int, members: Sequence[EnsemblePosition]) -> TallybookError:
    """The error that ends a writer without an ack quorum: the refusal of the lost members, if all refuse alike."""
    lost = [member for member in members if not member.serves]
    message = f"ledger {ledger_id}: no ack quorum without {', '.join(member.described for member in lost)}"
    if lost and all(member.refused_with is EntryTooLarge for member in lost):
        return EntryTooLarge(message)
    return refusal_of_all([member.unreached for member in lost], message) or NotEnoughBookies(message)
