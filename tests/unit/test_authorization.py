"""Asking bookies whether a command may be run, and what counts where they cannot say."""

from collections.abc import Callable
from types import SimpleNamespace

import pytest

from tallybook.cli import rights
from tallybook.cli.invocation import Invocation
from tallybook.cli.rights import check_right
from tallybook.client.authorization import ALLOWED_SECONDS, MAX_ASKED, WriteGuard, authorize
from tallybook.core.access import Permission
from tallybook.core.errors import AccessDenied, BookieUnavailable, InvalidArgument, MetadataUnavailable, Unauthenticated
from tallybook.runtime.deterministic.world import World, run_seed
from tallybook.runtime.rng import SeededRng
from tallybook.runtime.security import Standing

ASK = (Permission.ADMINISTER, "bookie drain", "b3")


class Bookies:
    """Bookies of a cluster, each of which answers with what it is given: an error, or yes."""

    def __init__(self, **answers: Exception | None) -> None:
        self.answers = answers
        self.asked: list[tuple[str, ...]] = []
        self.rng, self.membership, self.connections = SeededRng(1), self, self

    async def bookies(self) -> dict[str, object]:
        return dict.fromkeys(self.answers)

    async def get(self, bookie_id: str) -> object:
        if isinstance(self.answers[bookie_id], BookieUnavailable):
            raise self.answers[bookie_id]

        async def say(*ask: object) -> None:
            self.asked.append(ask)
            if self.answers[bookie_id] is not None:
                raise self.answers[bookie_id]

        return SimpleNamespace(authorize=say)


OLD = InvalidArgument("a kind of request that this version does not know")
AWAY = BookieUnavailable("it is away")


async def test_one_bookie_that_says_yes_is_enough_and_no_other_one_is_asked():
    bookies = Bookies(b1=None, b2=None, b3=None)
    assert await authorize(bookies, *ASK) in bookies.answers
    assert bookies.asked == [ASK]


async def test_bookies_that_cannot_say_are_passed_over():
    assert await authorize(Bookies(b1=OLD, b2=AWAY, b3=None), *ASK) == "b3"


@pytest.mark.parametrize("bookies", [Bookies(), Bookies(b1=OLD, b2=AWAY)])
async def test_where_no_bookie_can_say_that_is_told(bookies):
    assert await authorize(bookies, *ASK) is None


@pytest.mark.parametrize("no", [AccessDenied("somebody may not administer"), Unauthenticated("no certificate")])
async def test_a_no_counts_at_once_and_names_the_command(no):
    with pytest.raises(AccessDenied, match="'bookie drain' is refused by b1: " + no.message):
        await authorize(Bookies(b1=no), *ASK)


async def test_only_some_of_many_bookies_that_are_away_are_waited_for():
    bookies = Bookies(**{f"b{number}": OLD for number in range(3 * MAX_ASKED)})
    assert await authorize(bookies, *ASK) is None
    assert len(bookies.asked) == MAX_ASKED


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
    await check_right(Bookies(b1=AWAY), Standing("tallybook://admin/ada", frozenset(Permission)))
    [line] = [record.tallybook_fields for record in caplog.records if record.getMessage() == "command"]
    assert (line["identity"], line["peer"], line["arguments"]) == ("tallybook://admin/ada", "no bookie", "b3")


async def test_a_certificate_that_says_nothing_needs_a_bookie_that_does(running):
    running("bookie drain", "b3")
    unknown = Standing("ada.example.org", None)
    await check_right(Bookies(b1=None), unknown)
    with pytest.raises(AccessDenied, match=r"no bookie can say whether ada.example.org has it"):
        await check_right(Bookies(b1=AWAY), unknown)


# -- a client whose directory does not say whether it may write -------------------------------------------------------


class Asked:
    """What bookies answer one question after the other."""

    def __init__(self, *answers: str | Exception | None) -> None:
        self.answers = list(answers)

    async def __call__(self) -> str | None:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def test_a_yes_counts_for_a_minute_and_then_a_no_does():
    async def play(world: World) -> None:
        ask = Asked("b1", AccessDenied("no more"))
        guard = WriteGuard("ada.example.org", world.clock, ask)
        for _ in range(10):
            await guard("writing record a")
        assert len(ask.answers) == 1
        await world.clock.sleep(ALLOWED_SECONDS)
        with pytest.raises(AccessDenied, match="no more"):
            await guard("writing record a")

    run_seed(1, play)


def test_a_client_that_was_allowed_goes_on_while_no_bookie_can_say_and_one_that_never_was_does_not():
    async def play(world: World) -> None:
        allowed = WriteGuard("ada.example.org", world.clock, Asked("b1", None))
        await allowed("writing record a")
        await world.clock.sleep(ALLOWED_SECONDS)
        await allowed("writing record a")
        never = WriteGuard("ada.example.org", world.clock, Asked(None))
        with pytest.raises(MetadataUnavailable, match=r"whether ada.example.org may change the metadata: writing"):
            await never("writing record a")

    run_seed(1, play)
