"""The search for replacement bookies: hanging ones delay nothing, unneeded ones are not blamed, no task is left."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

import pytest

from tallybook.client.placement.quarantine import Quarantine
from tallybook.client.placement.replacement import choose_replacements
from tallybook.client.placement.replacement_probe import ReplacementFinder
from tallybook.core.answers import Incarnation
from tallybook.core.errors import (
    BookieReadOnly,
    BookieUnavailable,
    Busy,
    DiskFailed,
    EntryAbsent,
    EntryUnknown,
    InvariantViolation,
    MetadataUnavailable,
    RequestTimeout,
    TallybookError,
)
from tallybook.core.limits import MAX_BATCH_BYTES
from tallybook.core.quorum import Quorum
from tallybook.core.settings import ClientSettings
from tallybook.metadata.ledger.model import Fragment, LedgerMetadata
from tallybook.metadata.store import BookieInfo, BookieMode
from tallybook.sim.deterministic import World

from ..simulated import on_stage, world_alone

ENSEMBLE = ("m0", "m1", "m2")
METADATA = LedgerMetadata(1, Quorum(3, 3, 2), (Fragment(0, ENSEMBLE),), "creator", 0)
PATIENCE_S = 3.0

Answer = Callable[[], Awaitable[None]]


async def well() -> None:
    """It serves, and has nothing of the ledger."""
    raise EntryAbsent("nothing of it")


async def hangs() -> None:
    await asyncio.Event().wait()


def refuses(error: BaseException) -> Answer:
    async def refuse() -> None:
        raise error

    return refuse


class Candidates:
    """A membership and its connections: bookies with scripted answers."""

    def __init__(self, world: World, answers: Mapping[str, Answer]) -> None:
        self.clock = world.clock
        self.answers = dict(answers)
        self.asked: list[str] = []
        self.under_way: list[str] = []
        self.sizes: dict[str, int] = {}
        self.quarantine = Quarantine(60)
        settings = ClientSettings(connect_timeout_ms=int(PATIENCE_S * 1000))
        self.spares = ReplacementFinder(self, self, world.clock, world.rng, self.quarantine, settings)  # type: ignore[arg-type]

    async def bookies(self) -> dict[str, BookieInfo]:
        return {
            name: BookieInfo(name, f"host:{name}", Incarnation(name, 1), BookieMode.WRITABLE)
            for name in (*ENSEMBLE, *self.answers)
        }

    async def get(self, bookie_id: str) -> _Connection:
        return _Connection(self, bookie_id)

    def avoided(self) -> set[str]:
        return set(self.quarantine.now(self.clock.monotonic()))

    async def find(self, *positions: int, batch_bytes: int = 0) -> tuple[dict[int, str], float]:
        """The candidates found, and the seconds that it took."""
        began = self.clock.monotonic()
        found = await self.spares.find(METADATA, ENSEMBLE, positions, batch_bytes=batch_bytes)
        return found, self.clock.monotonic() - began


class _Connection:
    def __init__(self, candidates: Candidates, bookie_id: str) -> None:
        self._candidates = candidates
        self._bookie_id = bookie_id
        self.max_batch_bytes = candidates.sizes.get(bookie_id, MAX_BATCH_BYTES)

    async def read_lac(self, ledger_id: int, **_identity: bytes) -> None:
        self._candidates.asked.append(self._bookie_id)
        self._candidates.under_way.append(self._bookie_id)
        try:
            await self._candidates.answers[self._bookie_id]()
        finally:
            self._candidates.under_way.remove(self._bookie_id)


def repeated(body: Callable[[World], Awaitable[None]]) -> Callable[..., None]:
    """Run the decorated test five times in one world: the first candidate is random."""

    async def five_times(world: World) -> None:
        for _ in range(5):
            await body(world)

    return on_stage(world_alone, deadline_seconds=60)(five_times)


@repeated
async def test_one_that_serves_is_not_held_back_until_others_have_not_answered(world: World) -> None:
    candidates = Candidates(world, {"hung": hangs, "good": well})
    found, seconds = await candidates.find(0, 1)
    assert list(found.values()) == ["good"]
    assert seconds < 0.5


@repeated
async def test_a_responding_candidate_takes_any_open_position(world: World) -> None:
    for _ in range(10):
        answers = {"hung": hangs, "late": hangs, "full": refuses(BookieReadOnly()), "good": well, "better": well}
        found, seconds = await Candidates(world, answers).find(0, 2)
        assert set(found) == {0, 2}
        assert set(found.values()) == {"good", "better"}
        assert seconds < 0.5


@repeated
async def test_if_all_respond_no_other_candidate_is_probed(world: World) -> None:
    candidates = Candidates(world, {f"good{number}": well for number in range(10)})
    found, seconds = await candidates.find(0, 2)
    assert sorted(found.values()) == sorted(candidates.asked)
    assert seconds == 0


@repeated
async def test_one_that_failed_lately_is_not_taken_before_one_that_answers(world: World) -> None:
    candidates = Candidates(world, {f"failed{number}": well for number in range(5)} | {"good": well})
    for number in range(5):
        candidates.spares.avoid(f"failed{number}")
    found, _ = await candidates.find(0)
    assert found == {0: "good"}
    found, _ = await candidates.find(0, 1)
    assert "good" in found.values()
    assert len(found) == 2


@repeated
async def test_one_that_takes_only_smaller_batches_is_neither_taken_nor_avoided(world: World) -> None:
    candidates = Candidates(world, {"small": well, "good": well})
    candidates.sizes["small"] = 1000
    found, _ = await candidates.find(0, 1, batch_bytes=1001)
    assert list(found.values()) == ["good"]
    assert not candidates.avoided()
    found, _ = await candidates.find(0, 1, batch_bytes=1000)
    assert set(found.values()) == {"good", "small"}


@repeated
async def test_a_search_begins_with_those_that_placement_prefers(world: World) -> None:
    candidates = Candidates(world, {f"good{number}": well for number in range(5)})
    preferred = choose_replacements(await candidates.bookies(), ENSEMBLE, (0, 2), world.rng.fork("as it is drawn"))
    candidates.spares._rng = world.rng.fork("as it is drawn")
    assert (await candidates.find(0, 2))[0] == preferred


@repeated
async def test_one_that_hangs_is_avoided_but_not_one_whose_answer_was_not_needed(world: World) -> None:
    candidates = Candidates(world, {"hung": hangs, "good": well})
    await candidates.find(0, 1)
    assert candidates.avoided() == set()
    candidates.answers = {"hung": hangs}
    found, seconds = await candidates.find(0)
    assert found == {}
    assert PATIENCE_S <= seconds < PATIENCE_S + 0.5
    assert candidates.avoided() == {"hung"}


@pytest.mark.parametrize(
    ("error", "avoided"),
    [
        (BookieUnavailable("gone"), True),
        (RequestTimeout("silent"), True),
        (BookieReadOnly("full"), True),
        (DiskFailed("its disk"), True),
        (MetadataUnavailable("nobody knows where it is"), False),
        (Busy("later", retry_after_ms=20), False),
        (EntryUnknown("this ledger is in limbo"), False),
        (TallybookError("a code of a newer bookie"), False),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, TallybookError) else None,
)
@on_stage(world_alone, deadline_seconds=60)
async def test_only_what_is_the_fault_of_a_bookie_has_it_avoided(
    world: World, *, error: TallybookError, avoided: bool
) -> None:
    candidates = Candidates(world, {"asked": refuses(error)})
    assert (await candidates.find(0))[0] == {}
    assert candidates.asked == ["asked"]
    assert candidates.avoided() == ({"asked"} if avoided else set())


@pytest.mark.parametrize("defect", [InvariantViolation("it cannot be"), ValueError("a slip")])
@on_stage(world_alone, deadline_seconds=60)
async def test_a_defect_is_raised_unchanged_and_leaves_no_request_in_flight(world: World, *, defect: Exception) -> None:
    answers = {"broken": refuses(defect), **{f"hung{number}": hangs for number in range(3)}}
    candidates = Candidates(world, answers)
    with pytest.raises(type(defect)) as raised:
        await candidates.find(0, 1, 2)
    assert raised.value is defect
    assert candidates.under_way == []


@repeated
async def test_nothing_is_in_flight_after_a_search_or_after_its_caller_gave_up(world: World) -> None:
    candidates = Candidates(world, {"hung": hangs, "good": well})
    await candidates.find(0, 1)
    assert candidates.under_way == []
    candidates.answers = {f"hung{number}": hangs for number in range(5)}
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1):
            await candidates.find(0)
    assert len(candidates.asked) > 5
    assert candidates.under_way == []
    assert candidates.avoided() == set()


@repeated
async def test_even_where_very_many_hang_only_so_many_are_asked_at_once(world: World) -> None:
    candidates = Candidates(world, {f"hung{number}": hangs for number in range(200)})
    searching = asyncio.ensure_future(candidates.find(0, 1, 2))
    await world.clock.sleep(2)
    assert 20 <= len(candidates.under_way) <= 40
    searching.cancel()
    await asyncio.gather(searching, return_exceptions=True)
