"""Bookies are asked whether a command is authorized; and the result if they cannot answer."""

import asyncio
import re
import shlex
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace

import pytest

from tallybook.cli import rights
from tallybook.cli.invocation import Invocation
from tallybook.cli.rights import check_permission
from tallybook.client.authorization import (
    HEDGE_SECONDS,
    RENEW_SECONDS,
    RENEWAL_WAIT_AFTER_SECONDS,
    RENEWAL_WAIT_SECONDS,
    TOTAL_SECONDS,
    AuthorizationAnswer,
    WriteGuard,
    authorize,
)
from tallybook.client.background import client_tasks
from tallybook.core.access import Permission
from tallybook.core.errors import (
    AccessDenied,
    BookieUnavailable,
    HandleClosed,
    InvalidArgument,
    MetadataUnavailable,
    Unauthenticated,
)
from tallybook.runtime.rng import SeededRng
from tallybook.runtime.security.own_rights import OwnPermissions
from tallybook.sim.deterministic.world import World

from ..simulated import Parts, on_stage, simulated

ASK = (Permission.ADMINISTER, "bookie drain", ["b3"])


class Bookies:
    """Bookies of a cluster, each of which answers with what it is given: an error, yes, or nothing at all."""

    def __init__(self, **answers: Exception | None) -> None:
        self.answers = answers
        self.asked: list[tuple[object, ...]] = []
        self.rng, self.membership, self.connections, self.guard = SeededRng(1), self, self, None

    async def bookies(self) -> dict[str, object]:
        return dict.fromkeys(self.answers)

    async def get(self, bookie_id: str) -> object:
        answer = self.answers[bookie_id]
        if isinstance(answer, BookieUnavailable):
            raise answer

        async def say(*ask: object) -> None:
            self.asked.append(ask)
            if answer is HANGS:
                await asyncio.Event().wait()
            if answer is not None:
                raise answer

        return SimpleNamespace(authorize=say)


OLD = InvalidArgument("a kind of request that this version does not know")
AWAY = BookieUnavailable("it is away")
HANGS = Exception()


def many(answer: Exception, number: int = 20) -> dict[str, Exception]:
    """So many bookies that answer like this."""
    return {f"bad-{each}": answer for each in range(number)}


async def test_one_bookie_that_says_yes_is_enough_and_no_other_one_is_asked():
    bookies = Bookies(b1=None, b2=None, b3=None)
    assert (await authorize(bookies, *ASK)).by in bookies.answers
    assert bookies.asked == [(Permission.ADMINISTER, "bookie drain", "b3")]


@pytest.mark.parametrize("cannot", [OLD, AWAY])
async def test_bookies_are_asked_until_one_says(cannot):
    assert await authorize(Bookies(**many(cannot), b3=None), *ASK) == ("b3", False)


@simulated
async def test_bookies_that_hang_cost_a_second_each_and_all_of_them_no_more_than_there_is_for_all(world: World) -> None:
    began = world.clock.monotonic()
    assert (await authorize(Bookies(**many(HANGS, 4), b3=None), *ASK)).by == "b3"
    assert world.clock.monotonic() - began <= 4 * HEDGE_SECONDS
    began = world.clock.monotonic()
    assert await authorize(Bookies(**many(HANGS)), *ASK) == (None, False)
    assert world.clock.monotonic() - began == pytest.approx(TOTAL_SECONDS)


@pytest.mark.parametrize("bookies", [Bookies(), Bookies(b1=OLD, b2=AWAY)])
async def test_if_no_bookie_can_answer_that_is_reported_and_whether_one_is_too_old(bookies):
    assert await authorize(bookies, *ASK) == (None, "b1" in bookies.answers)


@pytest.mark.parametrize("no", [AccessDenied("ada may not administer"), Unauthenticated("no certificate")])
async def test_a_no_counts_at_once_and_names_the_command(no):
    with pytest.raises(AccessDenied, match="'bookie drain' is refused by b1: " + no.message):
        await authorize(Bookies(b1=no), *ASK)


@pytest.fixture
def running(monkeypatch) -> Callable[..., None]:
    """Be a process that runs a command."""

    def be(command: str, *arguments: str) -> None:
        monkeypatch.setattr(rights, "RUNNING", SimpleNamespace(get=lambda: Invocation(command, arguments)))

    return be


# -- where no bookie can say ------------------------------------------------------------------------------------------


async def test_without_a_bookie_the_own_certificate_decides_and_the_command_is_noted_here(running, caplog):
    caplog.set_level("INFO", "tallybook.audit")
    running("bookie drain", "b3")
    await check_permission(Bookies(b1=AWAY), OwnPermissions("tallybook://admin/ada", frozenset(Permission)))
    [line] = [record.tallybook_fields for record in caplog.records if record.getMessage() == "command"]
    assert (line["identity"], line["peer"], line["arguments"]) == ("tallybook://admin/ada", "no bookie", "b3")


async def test_a_certificate_that_says_nothing_needs_a_bookie_that_does(running):
    running("bookie drain", "b3")
    unknown = OwnPermissions("ada.example.org", None)
    await check_permission(Bookies(b1=None), unknown)
    with pytest.raises(AccessDenied, match=r"no bookie can say whether ada.example.org has it"):
        await check_permission(Bookies(b1=AWAY), unknown)


@pytest.mark.parametrize("bookies", [Bookies(b1=None), Bookies(b1=AWAY)])
async def test_all_words_of_a_command_are_noted_however_many_they_are(running, caplog, bookies):
    caplog.set_level("INFO", "tallybook.audit")
    words = [f"--metadata={'x' * 5_000}", "last word"]
    running("ledger rm", *words)
    await check_permission(bookies, OwnPermissions("tallybook://admin/ada", frozenset(Permission)))
    lines = [str(ask[-1]) for ask in bookies.asked]
    lines += [record.tallybook_fields["arguments"] for record in caplog.records if record.getMessage() == "command"]
    assert max(map(len, lines)) <= 1_000
    parts = [re.fullmatch(r"\((\d) of (\d)\) (.*)", line).groups() for line in lines]
    assert [part[:2] for part in parts] == [(str(number), str(len(lines))) for number in range(1, len(lines) + 1)]
    assert shlex.split("".join(part[2] for part in parts)) == words


async def test_a_command_with_more_words_than_can_be_noted_is_refused(running):
    running("ledger rm", *map(str, range(20_000)))
    bookies = Bookies(b1=None)
    with pytest.raises(InvalidArgument, match=r"'ledger rm' has 108,889 characters of arguments.*fewer at a time"):
        await check_permission(bookies, OwnPermissions("tallybook://admin/ada", frozenset(Permission)))
    assert bookies.asked == []


# -- a client whose own rules do not say whether it may write ----------------------------------------------------------


class Asked:
    """Answers of bookies to successive requests: the accepting bookie, no answer, or an error."""

    def __init__(self, *answers: AuthorizationAnswer | Exception) -> None:
        self.answers = list(answers)

    async def __call__(self) -> AuthorizationAnswer:
        answer = self.answers.pop(0)
        if answer is HANGS:
            await asyncio.Event().wait()
        if isinstance(answer, Exception):
            raise answer
        return answer


YES, NONE, NO = AuthorizationAnswer("b1"), AuthorizationAnswer(None), AccessDenied("no more")
CHANGE = "writing record a"


@asynccontextmanager
async def guards(world: World) -> AsyncIterator[Parts]:
    """A maker of guards that get the given answers."""
    tasks = client_tasks("test")

    def guard(*answers: AuthorizationAnswer | Exception, **more: bool) -> WriteGuard:
        return WriteGuard("ada.example.org", world.clock, tasks, Asked(*answers), **more)

    try:
        yield {"guard": guard}
    finally:
        await tasks.close()


guarded = on_stage(guards)


@guarded
async def test_a_yes_counts_for_a_minute_and_then_a_no_does(world, guard):
    found = guard(YES, NO)
    for _ in range(10):
        await found(CHANGE)
    await world.clock.sleep(RENEWAL_WAIT_AFTER_SECONDS)
    with pytest.raises(AccessDenied, match="no more: writing record a was not done"):
        await found(CHANGE)


@guarded
async def test_a_no_that_comes_while_an_older_yes_counts_is_for_all_later_changes(world, guard):
    found = guard(YES, NO, NO)
    await found(CHANGE)
    await world.clock.sleep(RENEW_SECONDS)
    await found(CHANGE)
    await world.clock.sleep(0)
    with pytest.raises(AccessDenied, match="no more"):
        await found(CHANGE)


@guarded
async def test_a_client_that_was_allowed_goes_on_while_no_bookie_can_say_and_one_that_never_was_does_not(world, guard):
    found = guard(YES, NONE, MetadataUnavailable("away"))
    for _ in range(3):
        await found(CHANGE)
        await world.clock.sleep(RENEWAL_WAIT_AFTER_SECONDS)
    with pytest.raises(MetadataUnavailable, match=r"whether ada.example.org may change the metadata: writing"):
        await guard(NONE)(CHANGE)


@guarded
async def test_changes_do_not_wait_for_bookies_that_hang_once_one_has_said_yes(world, guard):
    found = guard(YES, HANGS)
    await found(CHANGE)
    await world.clock.sleep(RENEW_SECONDS)
    began = world.clock.monotonic()
    for _ in range(100):
        await found(CHANGE)
    assert world.clock.monotonic() == began
    await world.clock.sleep(RENEWAL_WAIT_AFTER_SECONDS)
    began = world.clock.monotonic()
    for _ in range(100):
        await found(CHANGE)
    assert world.clock.monotonic() == began, "it was waited for when it was asked"
    idle = guard(YES, HANGS)
    await idle(CHANGE)
    await world.clock.sleep(10 * RENEWAL_WAIT_AFTER_SECONDS)
    began = world.clock.monotonic()
    for _ in range(100):
        await idle(CHANGE)
    assert world.clock.monotonic() - began == pytest.approx(RENEWAL_WAIT_SECONDS)


@guarded
async def test_the_role_in_a_certificate_counts_only_where_bookies_are_too_old_to_say(world, guard):
    too_old = AuthorizationAnswer(None, too_old=True)
    await guard(too_old, by_role=True)(CHANGE)
    for answer, by_role in ((too_old, False), (NONE, True), (NONE, False)):
        with pytest.raises(MetadataUnavailable):
            await guard(answer, by_role=by_role)(CHANGE)


@simulated
async def test_a_change_that_waits_for_a_bookie_ends_with_its_client(world: World) -> None:
    tasks = client_tasks("test")
    guard = WriteGuard("ada.example.org", world.clock, tasks, Asked(HANGS))
    waiting = asyncio.create_task(guard(CHANGE))
    await world.clock.sleep(1)
    await tasks.close()
    with pytest.raises(HandleClosed, match="writing record a was not done"):
        await waiting
    with pytest.raises(HandleClosed):
        await guard(CHANGE)
