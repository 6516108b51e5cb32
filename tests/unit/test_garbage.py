"""Which ledgers are garbage, which entry logs nobody needs, and what the metadata are taken to say of a ledger."""

from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from tallybook.bookie.fates import fate_of
from tallybook.bookie.garbage import Fate, Judge
from tallybook.core.errors import DamagedFile, InvariantViolation, MetadataUnavailable, NoSuchLedger, RequestTimeout
from tallybook.core.quorum import Quorum
from tallybook.metadata.archived import IndexPart, Receipt
from tallybook.metadata.model import Fragment, LedgerMetadata, LedgerState
from tallybook.metadata.store import Versioned

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


def judged(*answers: tuple[Fate, int | None], ledger_id: int = 7) -> list[bool]:
    """What comes of one ledger, round by round: what the metadata say, and the counter before."""
    judge, found = Judge(), []
    for fate, counter in answers:
        judge.begin(counter)
        found.append(judge.is_garbage(ledger_id, fate))
    return found


def test_a_released_ledger_is_garbage_at_once_whatever_the_counter_says() -> None:
    assert judged((Fate.RELEASED, None)) == [True]


def test_a_missing_ledger_is_garbage_when_it_is_missing_in_two_rounds_one_after_the_other() -> None:
    assert judged((Fate.MISSING, 100), (Fate.MISSING, 100)) == [False, True]


@pytest.mark.parametrize("between", [Fate.KEPT, Fate.UNKNOWN])
def test_anything_else_between_two_absences_begins_again(between: Fate) -> None:
    answers = (Fate.MISSING, 100), (between, 100), (Fate.MISSING, 100), (Fate.MISSING, 100)
    assert judged(*answers) == [False, False, False, True]


def test_a_round_in_which_the_ledger_was_not_asked_about_begins_again() -> None:
    judge = Judge()
    judge.begin(100)
    assert not judge.is_garbage(7, Fate.MISSING)
    judge.begin(100)  # it ends before it comes to this ledger
    judge.begin(100)
    assert not judge.is_garbage(7, Fate.MISSING)
    judge.begin(100)
    assert judge.is_garbage(7, Fate.MISSING)


@pytest.mark.parametrize("counter", [0, 7, None])
def test_a_ledger_at_or_above_the_counter_is_never_believed_to_be_deleted(counter: int | None) -> None:
    assert judged(*[(Fate.MISSING, counter)] * 3) == [False] * 3
    assert judged((Fate.MISSING, 8), (Fate.MISSING, counter), (Fate.MISSING, 8)) == [False] * 3


@pytest.mark.parametrize("fate", [Fate.KEPT, Fate.UNKNOWN])
def test_what_is_kept_or_cannot_be_told_is_never_garbage(fate: Fate) -> None:
    assert judged(*[(fate, 100)] * 3) == [False] * 3


def test_suspects_are_bounded_and_the_others_have_their_turn_later() -> None:
    judge, left = Judge(max_suspects=2), {1, 2, 3, 4}
    dropped = []
    for _ in range(4):
        judge.begin(100)
        found = {each for each in sorted(left) if judge.is_garbage(each, Fate.MISSING)}
        dropped.append(found)
        left -= found
    assert dropped == [set(), {1, 2}, set(), {3, 4}]


class Store:
    """Metadata of one ledger: one answer for reads that may be old, one for those that may not."""

    def __init__(self, old: LedgerMetadata | Exception, now: LedgerMetadata | Exception) -> None:
        self._answers = {False: old, True: now}

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
        (NoSuchLedger("gone"), NoSuchLedger("gone"), Fate.MISSING),
        (NoSuchLedger("gone"), MetadataUnavailable("away"), Fate.UNKNOWN),
        (NoSuchLedger("gone"), DamagedFile("bytes"), Fate.UNKNOWN),
        (MetadataUnavailable("away"), NoSuchLedger("gone"), Fate.UNKNOWN),
        (DamagedFile("bytes"), NoSuchLedger("gone"), Fate.UNKNOWN),
        (RequestTimeout("late"), NoSuchLedger("gone"), Fate.UNKNOWN),
        (OTHERS, OTHERS, Fate.UNNAMED),
        (OTHERS, CLOSED, Fate.KEPT),
        (CLOSED, OTHERS, Fate.KEPT),
        (NoSuchLedger("not yet"), OTHERS, Fate.UNNAMED),
        (OTHERS, NoSuchLedger("gone"), Fate.MISSING),
        (OTHERS, MetadataUnavailable("away"), Fate.UNKNOWN),
        (OTHERS, PARTLY_OURS, Fate.KEPT),
        (OTHERS, OPEN_OTHERS, Fate.KEPT),
        (OTHERS, IN_RECOVERY_OTHERS, Fate.KEPT),
        (replace(RELEASED, fragments=WITHOUT_US[:1]), OTHERS, Fate.RELEASED),
    ],
)
def test_a_ledger_is_missing_or_for_others_only_on_the_word_of_a_read_that_cannot_be_old(
    run: Callable[[Awaitable[Fate]], Fate], old: LedgerMetadata, now: LedgerMetadata, fate: Fate
) -> None:
    assert run(fate_of(Store(old, now), 7, "b1")) is fate  # type: ignore[arg-type]


def test_a_defect_of_the_store_is_not_taken_for_an_answer(run: Callable[[Awaitable[Fate]], Fate]) -> None:
    with pytest.raises(InvariantViolation):
        run(fate_of(Store(InvariantViolation("wrong"), OPEN), 7, "b1"))  # type: ignore[arg-type]
