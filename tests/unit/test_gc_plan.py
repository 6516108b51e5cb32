"""Which ledgers are garbage, which entry logs nobody needs, and what the metadata are taken to say of a ledger."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace

import pytest

from tallybook.bookie.fates import fate_of
from tallybook.bookie.garbage import Delays, Fate, Judge
from tallybook.core.errors import DamagedFile, InvariantViolation, MetadataUnavailable, NoSuchLedger, RequestTimeout
from tallybook.core.ids import NO_IDENTITY
from tallybook.core.quorum import Quorum
from tallybook.metadata.archived import IndexPart, Receipt
from tallybook.metadata.model import Fragment, LedgerMetadata, LedgerState
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
DELAYS = Delays(deleted_seconds=60.0, missing_seconds=3600.0, max_share=0.5)


class Rounds:
    """Rounds of a judge, an hour apart unless said otherwise."""

    def __init__(self, delays: Delays = DELAYS, **options: int) -> None:
        self.judge = Judge(delays, **options)
        self.now = 0.0

    def round(
        self,
        fates: Mapping[int, Fate],
        *,
        after: float = 3600.0,
        counter: int | None = 1_000_000,
        short: bool = False,
        approved: bool = False,
    ) -> set[int]:
        """The ledgers that a round finds to be garbage."""
        self.now += after
        self.judge.begin(counter, self.now, short_of_space=short, approved=approved)
        found = {ledger_id for ledger_id, fate in fates.items() if self.judge.is_garbage(ledger_id, fate)}
        for ledger_id in found:
            self.judge.dropped(ledger_id)
        return found

    def of_one(self, *answers: tuple[Fate, int | None], ledger_id: int = 7) -> list[bool]:
        """What comes of one ledger, round by round: what the metadata say, and the counter before."""
        return [bool(self.round({ledger_id: fate}, counter=counter)) for fate, counter in answers]


def test_a_released_ledger_is_garbage_at_once_whatever_the_counter_says() -> None:
    assert Rounds().of_one((Fate.RELEASED, None)) == [True]


def test_a_deleted_ledger_is_garbage_once_it_has_been_so_for_long_in_two_rounds_at_least() -> None:
    rounds = Rounds()
    assert not rounds.round({7: Fate.DELETED})
    assert not rounds.round({7: Fate.DELETED}, after=1)
    assert not rounds.round({7: Fate.DELETED}, after=58)
    assert rounds.round({7: Fate.DELETED}, after=1) == {7}


def test_a_bookie_that_is_short_of_space_does_not_wait_for_longer_than_two_rounds() -> None:
    rounds = Rounds()
    assert not rounds.round({7: Fate.DELETED}, short=True)
    assert rounds.round({7: Fate.DELETED}, after=1, short=True) == {7}


@pytest.mark.parametrize("between", [Fate.KEPT, Fate.UNKNOWN, Fate.MISSING])
def test_anything_else_between_two_answers_begins_again(between: Fate) -> None:
    answers = (Fate.DELETED, 100), (between, 100), (Fate.DELETED, 100), (Fate.DELETED, 100)
    assert Rounds().of_one(*answers) == [False, False, False, True]


def test_a_round_in_which_the_ledger_was_not_asked_about_begins_again() -> None:
    rounds = Rounds()
    found = [rounds.round(each) for each in ({7: Fate.DELETED}, {}, {7: Fate.DELETED}, {7: Fate.DELETED})]
    assert found == [set(), set(), set(), {7}]


@pytest.mark.parametrize("counter", [0, 7, None])
def test_a_ledger_at_or_above_the_counter_is_never_believed_to_be_deleted(counter: int | None) -> None:
    assert Rounds().of_one(*[(Fate.DELETED, counter)] * 3) == [False] * 3
    assert Rounds().of_one((Fate.DELETED, 8), (Fate.DELETED, counter), (Fate.DELETED, 8)) == [False] * 3


@pytest.mark.parametrize("fate", [Fate.KEPT, Fate.UNKNOWN, Fate.MISSING])
def test_what_is_kept_or_missing_or_cannot_be_told_is_never_garbage(fate: Fate) -> None:
    assert Rounds().of_one(*[(fate, 100)] * 10) == [False] * 10


@pytest.mark.parametrize("short", [False, True])
def test_a_missing_ledger_goes_in_the_one_round_that_an_operator_approves_after_hours(short: bool) -> None:
    rounds, missing = Rounds(), {7: Fate.MISSING}
    assert not rounds.round(missing, short=short)
    assert not rounds.round(missing, after=3599, short=short, approved=True), "however often it is asked for"
    assert not rounds.round(missing, after=1, short=short), "an approval is for one round"
    assert rounds.round({**missing, 8: Fate.MISSING}, after=0, short=short, approved=True) == {7}


def many(count: int, fate: Fate = Fate.DELETED) -> dict[int, Fate]:
    return {**dict.fromkeys(range(count), fate), **dict.fromkeys(range(count, 4000), Fate.KEPT)}


def test_a_round_that_would_drop_a_large_share_waits_for_an_operator() -> None:
    rounds = Rounds()
    assert not rounds.round(many(2001))
    assert not rounds.round(many(2001))
    assert rounds.judge.held
    assert rounds.judge.count(Fate.DELETED) == 2001
    assert len(rounds.round(many(2001), approved=True)) == 2001
    assert not rounds.judge.held


def test_a_round_that_would_drop_no_large_share_or_few_ledgers_does_not_wait() -> None:
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
    assert rounds.round({**many(3000), 3999: Fate.RELEASED}) == {3999}


def test_suspects_are_bounded_and_the_others_have_their_turn_later() -> None:
    rounds, left = Rounds(max_suspects=2), {1, 2, 3, 4}
    dropped = []
    for _ in range(4):
        found = rounds.round(dict.fromkeys(sorted(left), Fate.DELETED))
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
        (OPEN, NoSuchLedger("gone"), Fate.KEPT),
        (ARCHIVED, RELEASED, Fate.KEPT),
        (RELEASED, RELEASED, Fate.RELEASED),
        (NoSuchLedger("not yet"), OPEN, Fate.KEPT),
        (NoSuchLedger("not yet"), RELEASED, Fate.RELEASED),
        (NoSuchLedger("gone"), NoSuchLedger("gone"), Fate.DELETED),
        (NoSuchLedger("gone"), MetadataUnavailable("away"), Fate.UNKNOWN),
        (NoSuchLedger("gone"), DamagedFile("bytes"), Fate.UNKNOWN),
        (MetadataUnavailable("away"), NoSuchLedger("gone"), Fate.UNKNOWN),
        (DamagedFile("bytes"), NoSuchLedger("gone"), Fate.UNKNOWN),
        (RequestTimeout("late"), NoSuchLedger("gone"), Fate.UNKNOWN),
        (OTHERS, OTHERS, Fate.UNNAMED),
        (OTHERS, CLOSED, Fate.KEPT),
        (CLOSED, OTHERS, Fate.KEPT),
        (NoSuchLedger("not yet"), OTHERS, Fate.UNNAMED),
        (OTHERS, NoSuchLedger("gone"), Fate.DELETED),
        (OTHERS, MetadataUnavailable("away"), Fate.UNKNOWN),
        (OTHERS, PARTLY_OURS, Fate.KEPT),
        (OTHERS, OPEN_OTHERS, Fate.KEPT),
        (OTHERS, IN_RECOVERY_OTHERS, Fate.KEPT),
        (replace(RELEASED, fragments=WITHOUT_US[:1]), OTHERS, Fate.RELEASED),
    ],
)
def test_a_ledger_is_deleted_or_for_others_only_on_the_word_of_a_read_that_cannot_be_old(
    run: Callable[[Awaitable[Fate]], Fate], old: LedgerMetadata, now: LedgerMetadata, fate: Fate
) -> None:
    assert run(fate_of(Store(old, now), 7, "b1")) is fate  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("deleted", "fate"),
    [
        (DELETION, Fate.DELETED),
        (Deletion(NO_IDENTITY), Fate.DELETED),
        (Deletion.of(b"another one"), Fate.OTHER),
        (None, Fate.MISSING),
        (MetadataUnavailable("away"), Fate.UNKNOWN),
    ],
)
def test_a_ledger_without_metadata_is_deleted_only_where_there_is_a_record_of_it(
    run: Callable[[Awaitable[Fate]], Fate], deleted: Deletion | Exception | None, fate: Fate
) -> None:
    gone = NoSuchLedger("gone")
    assert run(fate_of(Store(gone, gone, deleted), 7, "b1", OPEN.identity)) is fate  # type: ignore[arg-type]


def test_a_ledger_of_no_known_identity_is_deleted_where_any_of_its_id_was(
    run: Callable[[Awaitable[Fate]], Fate],
) -> None:
    gone = NoSuchLedger("gone")
    assert run(fate_of(Store(gone, gone), 7, "b1")) is Fate.DELETED  # type: ignore[arg-type]


def test_a_defect_of_the_store_is_not_taken_for_an_answer(run: Callable[[Awaitable[Fate]], Fate]) -> None:
    with pytest.raises(InvariantViolation):
        run(fate_of(Store(InvariantViolation("wrong"), OPEN), 7, "b1"))  # type: ignore[arg-type]


def test_a_judge_tells_when_an_approved_round_would_drop_something() -> None:
    rounds = Rounds()
    rounds.round({7: Fate.KEPT})
    assert rounds.judge.due_at() is None
    rounds.round({7: Fate.DELETED, 8: Fate.KEPT})
    assert rounds.judge.due_at() is None, "it goes without an operator"
    rounds.round({8: Fate.MISSING}, after=10)
    first = rounds.now
    rounds.round({8: Fate.MISSING, 9: Fate.OTHER}, after=10)
    assert rounds.judge.due_at() == first + DELAYS.missing_seconds
    assert rounds.round({8: Fate.MISSING, 9: Fate.OTHER}, after=3580, approved=True) == set()
    assert rounds.round({8: Fate.MISSING, 9: Fate.OTHER}, after=10, approved=True) == {8}
    assert rounds.judge.due_at() == first + 10 + DELAYS.missing_seconds
