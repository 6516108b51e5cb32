"""How long a writer waits for the members of its ensemble, and what it hopes of them.

UP, owes an ack for too long              it has failed
UP, busy for too long, others accept      it has failed; of all, that is back-pressure
UP, far behind, others are overloaded     waited for, while it catches up
no quorum serves any more                 since when, and who may still be hoped for
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tallybook.core.errors import EntryTooLarge, NotEnoughBookies, TallybookError
from tallybook.core.quorum import Quorum

from ..refusals import refusal_of_all
from .members import Member, Position
from .rules import WriterRules

CATCH_UP_TIMEOUTS: Final = 3
"""A member that is far behind has to ack more than it may be behind within this many add timeouts."""


def overdue(member: Position, rules: WriterRules, now: float) -> bool:
    """Whether it owes an ack for too long."""
    oldest = member.outbox.oldest()
    return oldest is not None and now - oldest >= rules.add_timeout_s


def busy_for_too_long(at: int, members: Sequence[Position], quorum: Quorum, rules: WriterRules, now: float) -> bool:
    """Overload of all is back-pressure; of one, while a quorum of others accepts, a failure."""
    busy_since = members[at].busy_since
    if busy_since is None or now - busy_since < rules.add_timeout_s:
        return False
    accepting = [
        index
        for index, other in enumerate(members)
        if index != at and other.state is Member.UP and other.busy_since is None
    ]
    return quorum.writable(accepting)


def too_far_behind(at: int, members: Sequence[Position], quorum: Quorum, rules: WriterRules, now: float) -> bool:
    """Whether no more is to be kept for it. Where others are overloaded, too, it is waited for while it catches up.

    The member is told since when it has been behind, so ask once for each event.
    """
    member = members[at]
    if not member.retained_for or member.lag_bytes <= rules.lag_limit_bytes:
        member.behind_since = None
        return False
    if member.behind_since is None or member.caught_up_bytes > rules.lag_limit_bytes:
        member.behind_since, member.caught_up_bytes = now, 0
    answers = member.state is Member.UP and member.serves
    in_time = now - member.behind_since < CATCH_UP_TIMEOUTS * rules.add_timeout_s
    return not (answers and in_time and _others_overloaded(at, members, quorum, rules, now))


def _others_overloaded(at: int, members: Sequence[Position], quorum: Quorum, rules: WriterRules, now: float) -> bool:
    """Whether others that are there have been busy so lately that without them no quorum is left."""
    since = now - rules.add_timeout_s
    there = [index for index, other in enumerate(members) if index != at and other.state is Member.UP and other.serves]
    calm = [index for index in there if members[index].busy_at <= since]
    return len(calm) < len(there) and not quorum.writable(calm)


def quorum_lost_at(members: Sequence[Position], quorum: Quorum) -> float | None:
    """Since when some write set has fewer than Qa members that serve; ``None`` if none has."""
    lost_at: float | None = None
    for write_set in quorum.write_sets():
        unserved = sorted(members[at].unserved_since for at in write_set if not members[at].serves)
        missing = len(unserved) - (quorum.write_quorum - quorum.ack_quorum)
        if missing > 0:
            # The one whose loss left too few of them.
            since = unserved[len(unserved) - missing]
            lost_at = since if lost_at is None else min(lost_at, since)
    return lost_at


def lives(member: Position, rules: WriterRules, now: float) -> bool:
    """Whether an ack may be hoped for. Who only connects again and again must not feed that hope for ever."""
    return member.serves or (member.retained_for and now - member.away_since < rules.add_timeout_s)


def loss_of_quorum(ledger_id: int, members: Sequence[Position]) -> TallybookError:
    """What a writer ends with where no ack quorum is left: what its members refuse with, if that is the same of all."""
    lost = [member for member in members if not member.serves]
    told = f"ledger {ledger_id}: no ack quorum without {', '.join(member.described for member in lost)}"
    if lost and all(member.refused_with is EntryTooLarge for member in lost):
        return EntryTooLarge(told)
    return refusal_of_all([member.unreached for member in lost], told) or NotEnoughBookies(told)
