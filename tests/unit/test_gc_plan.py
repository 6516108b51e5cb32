"""The plan of garbage collection: garbage ledgers, unneeded entry logs, and how metadata are interpreted."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from tallybook.bookie.gc.plan import GarbagePolicy, GcDelays
from tallybook.bookie.ledgers.disposition import LedgerDisposition, disposition_of
from tallybook.core.errors import DamagedFile, InvariantViolation, MetadataUnavailable, NoSuchLedger, RequestTimeout
from tallybook.core.ids import NO_IDENTITY
from tallybook.core.quorum import Quorum
from tallybook.metadata.ledger.archived import IndexPart, Receipt
from tallybook.metadata.ledger.model import Fragment, LedgerMetadata, LedgerState
from tallybook.metadata.store import Deletion, Versioned

OPEN = LedgerMetadata(7, Quorum(1, 1, 1), (Fragment(0, ("b1",)),), "creator", 0)
RECEIPT = Receipt("o", "key", 100, bytes(32), IndexPart(0, 10, 10, 0), 0, 0, 0, 0)
ARCHIVED = replace(OPEN, state=LedgerState.CLOSED, archived=RECEIPT)
RELEASED = replace(ARCHIVED, copies_released=True)
CLOSED = replace(OPEN, state=LedgerState.CLOSED)
WITHOUT_US = (Fragment(0, ("b2",)), Fragment(5, ("b3",)))
OTHERS = replace(CLOSED, fragments=WITHOUT_US, last_entry_id=9)
PARTLY_OURS = replace(CLOSED, fragments=(*WITHOUT_US, Fragment(7, ("b1",))), last_entry_id=9)
OPEN_OTHERS = replace(OPEN, fragments=WITHOUT_US)
IN_RECOVERY_OTHERS = replace(OPEN_OTHERS, state=LedgerState.IN_RECOVERY)


DELETION = Deletion.of(OPEN.identity)
D = LedgerDisposition
DELAYS = GcDelays(deleted_seconds=60.0, missing_seconds=3600.0, max_share=0.5)


class Rounds:
    """Rounds of a judge, an hour apart unless said otherwise."""

    def __init__(self, delays: GcDelays = DELAYS, **options: int) -> None:
        self.judge = GarbagePolicy(delays, **options)
        self.now = 0.0

    def round(
        self,
        dispositions: Mapping[int, LedgerDisposition],
        *,
        after: float = 3600.0,
        counter: int | None = 1_000_000,
        short: bool = False,
        approved: bool = False,
    ) -> set[int]:
        """The ledgers that a round finds to be garbage."""
        self.now += after
        self.judge.begin(counter, self.now, short_of_space=short, approved=approved)
        found = {ledger_id for ledger_id, fate in dispositions.items() if self.judge.is_garbage(ledger_id, fate)}
        for ledger_id in found:
            self.judge.dropped(ledger_id)
        return found

    def of_one(self, *answers: tuple[LedgerDisposition, int | None], ledger_id: int = 7) -> list[bool]:
        """Decisions on one ledger, pass by pass, from its disposition and the counter read before."""
        return [bool(self.round({ledger_id: fate}, counter=counter)) for fate, counter in answers]


def test_a_released_ledger_is_garbage_at_once_with_any_counter() -> None:
    assert Rounds().of_one((D.RELEASED, None)) == [True]


def test_a_deleted_ledger_is_garbage_once_it_has_been_so_for_long_in_two_passes_at_least() -> None:
    rounds = Rounds()
    assert not rounds.round({7: D.DELETED})
    assert not rounds.round({7: D.DELETED}, after=1)
    assert not rounds.round({7: D.DELETED}, after=58)
    assert rounds.round({7: D.DELETED}, after=1) == {7}


def test_a_bookie_that_is_short_of_space_does_not_wait_for_longer_than_two_passes() -> None:
    rounds = Rounds()
    assert not rounds.round({7: D.DELETED}, short=True)
    assert rounds.round({7: D.DELETED}, after=1, short=True) == {7}


@pytest.mark.parametrize("between", [{7: D.KEPT}, {7: D.UNKNOWN}, {7: D.MISSING}, {}])
def test_anything_else_or_nothing_between_two_answers_begins_again(between: dict[int, LedgerDisposition]) -> None:
    rounds, deleted = Rounds(), {7: D.DELETED}
    found = [rounds.round(each) for each in (deleted, between, deleted, deleted)]
    assert found == [set(), set(), set(), {7}]


@pytest.mark.parametrize("counter", [0, 7, None])
def test_a_ledger_at_or_above_the_counter_is_never_believed_to_be_deleted(counter: int | None) -> None:
    assert Rounds().of_one(*[(D.DELETED, counter)] * 3) == [False] * 3
    assert Rounds().of_one((D.DELETED, 8), (D.DELETED, counter), (D.DELETED, 8)) == [False] * 3


@pytest.mark.parametrize("fate", [D.KEPT, D.UNKNOWN, D.MISSING])
def test_kept_missing_or_unknown_ledgers_are_never_garbage(fate: LedgerDisposition) -> None:
    assert Rounds().of_one(*[(fate, 100)] * 10) == [False] * 10


@pytest.mark.parametrize("short", [False, True])
def test_a_missing_ledger_is_dropped_in_the_one_pass_that_an_operator_approves_after_hours(short: bool) -> None:
    rounds, missing = Rounds(), {7: D.MISSING}
    assert not rounds.round(missing, short=short)
    assert not rounds.round(missing, after=3599, short=short, approved=True), "however often it is asked for"
    assert not rounds.round(missing, after=1, short=short), "an approval is for one round"
    assert rounds.round({**missing, 8: D.MISSING}, after=0, short=short, approved=True) == {7}


def many(count: int, fate: LedgerDisposition = D.DELETED) -> dict[int, LedgerDisposition]:
    return {**dict.fromkeys(range(count), fate), **dict.fromkeys(range(count, 4000), D.KEPT)}


def test_a_pass_that_would_drop_a_large_share_waits_for_an_operator() -> None:
    rounds = Rounds()
    assert not rounds.round(many(2001))
    assert not rounds.round(many(2001))
    assert rounds.judge.awaits_approval
    assert rounds.judge.count(D.DELETED) == 2001
    assert len(rounds.round(many(2001), approved=True)) == 2001
    assert not rounds.judge.awaits_approval


def test_a_pass_that_would_drop_no_large_share_or_few_ledgers_does_not_wait() -> None:
    for count, share in ((2000, 0.5), (1000, 0.0)):
        rounds = Rounds(replace(DELAYS, max_share=share))
        rounds.round(many(count))
        assert len(rounds.round(many(count))) == count


def test_a_bookie_that_is_short_of_space_drops_a_large_share_of_deleted_ledgers() -> None:
    rounds = Rounds()
    rounds.round(many(3000))
    assert len(rounds.round(many(3000), short=True)) == 3000


def test_a_held_round_releases_what_is_in_the_archive() -> None:
    rounds = Rounds()
    rounds.round(many(3000))
    assert rounds.round({**many(3000), 3999: D.RELEASED}) == {3999}


def test_suspects_are_bounded_and_the_others_have_their_turn_later() -> None:
    rounds, left = Rounds(max_suspects=2), {1, 2, 3, 4}
    dropped = []
    for _ in range(4):
        found = rounds.round(dict.fromkeys(sorted(left), D.DELETED))
        dropped.append(found)
        left -= found
    assert dropped == [set(), {1, 2}, set(), {3, 4}]


class Store:
    """Metadata of one ledger: one answer for reads that may be old, one for those that may not."""

    def __init__(
        self,
        old: LedgerMetadata | Exception,
        now: LedgerMetadata | Exception,
        deleted: Deletion | Exception | None = DELETION,
    ) -> None:
        self._answers = {False: old, True: now}
        self._deleted = deleted

    async def deletion(self, ledger_id: int) -> Deletion | None:
        assert ledger_id == 7
        if isinstance(self._deleted, Exception):
            raise self._deleted
        return self._deleted

    async def read_ledger(self, ledger_id: int, *, linearizable: bool = False) -> Versioned:
        answer = self._answers[linearizable]
        if isinstance(answer, Exception):
            raise answer
        assert answer.ledger_id == ledger_id
        return Versioned(answer, 1)


@pytest.mark.parametrize(
    ("old", "now", "fate"),
    [
        (OPEN, NoSuchLedger("gone"), D.KEPT),
        (ARCHIVED, RELEASED, D.KEPT),
        (RELEASED, RELEASED, D.RELEASED),
        (NoSuchLedger("not yet"), OPEN, D.KEPT),
        (NoSuchLedger("not yet"), RELEASED, D.RELEASED),
        (NoSuchLedger("gone"), NoSuchLedger("gone"), D.DELETED),
        (NoSuchLedger("gone"), MetadataUnavailable("away"), D.UNKNOWN),
        (NoSuchLedger("gone"), DamagedFile("bytes"), D.UNKNOWN),
        (MetadataUnavailable("away"), NoSuchLedger("gone"), D.UNKNOWN),
        (DamagedFile("bytes"), NoSuchLedger("gone"), D.UNKNOWN),
        (RequestTimeout("late"), NoSuchLedger("gone"), D.UNKNOWN),
        (OTHERS, OTHERS, D.UNNAMED),
        (OTHERS, CLOSED, D.KEPT),
        (CLOSED, OTHERS, D.KEPT),
        (NoSuchLedger("not yet"), OTHERS, D.UNNAMED),
        (OTHERS, NoSuchLedger("gone"), D.DELETED),
        (OTHERS, MetadataUnavailable("away"), D.UNKNOWN),
        (OTHERS, PARTLY_OURS, D.KEPT),
        (OTHERS, OPEN_OTHERS, D.KEPT),
        (OTHERS, IN_RECOVERY_OTHERS, D.KEPT),
        (replace(RELEASED, fragments=WITHOUT_US[:1]), OTHERS, D.RELEASED),
    ],
)
async def test_a_ledger_is_deleted_or_for_others_only_on_the_word_of_a_read_that_cannot_be_old(
    old: LedgerMetadata, now: LedgerMetadata, fate: LedgerDisposition
) -> None:
    assert await disposition_of(Store(old, now), 7, "b1") is fate  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("deleted", "fate"),
    [
        (DELETION, D.DELETED),
        (Deletion(NO_IDENTITY), D.DELETED),
        (Deletion.of(b"another one"), D.OTHER),
        (None, D.MISSING),
        (MetadataUnavailable("away"), D.UNKNOWN),
    ],
)
async def test_a_ledger_without_metadata_is_deleted_only_where_there_is_a_record_of_it(
    deleted: Deletion | Exception | None, fate: LedgerDisposition
) -> None:
    gone = NoSuchLedger("gone")
    assert await disposition_of(Store(gone, gone, deleted), 7, "b1", OPEN.identity) is fate  # type: ignore[arg-type]


async def test_a_ledger_of_no_known_identity_is_deleted_where_any_of_its_id_was() -> None:
    gone = NoSuchLedger("gone")
    assert await disposition_of(Store(gone, gone), 7, "b1") is D.DELETED  # type: ignore[arg-type]


async def test_a_defect_of_the_store_is_not_taken_for_an_answer() -> None:
    with pytest.raises(InvariantViolation):
        await disposition_of(Store(InvariantViolation("wrong"), OPEN), 7, "b1")  # type: ignore[arg-type]


def test_a_judge_tells_when_an_approved_pass_would_drop_something() -> None:
    rounds = Rounds()
    rounds.round({7: D.KEPT})
    assert rounds.judge.due_at() is None
    rounds.round({7: D.DELETED, 8: D.KEPT})
    assert rounds.judge.due_at() is None, "it goes without an operator"
    rounds.round({8: D.MISSING}, after=10)
    first = rounds.now
    rounds.round({8: D.MISSING, 9: D.OTHER}, after=10)
    assert rounds.judge.due_at() == first + DELAYS.missing_seconds
    assert rounds.round({8: D.MISSING, 9: D.OTHER}, after=3580, approved=True) == set()
    assert rounds.round({8: D.MISSING, 9: D.OTHER}, after=10, approved=True) == {8}
    assert rounds.judge.due_at() == first + 10 + DELAYS.missing_seconds
