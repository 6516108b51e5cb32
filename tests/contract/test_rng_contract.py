"""Contract of ``Rng``: the one of the system, and the seeded one."""

import uuid

import pytest

from tallybook.runtime.rng import Rng, SeededRng, SystemRng


@pytest.fixture(params=["system", "seeded", "fork"])
def rng(request: pytest.FixtureRequest) -> Rng:
    makers = {"system": SystemRng, "seeded": lambda: SeededRng(1), "fork": lambda: SeededRng("a").fork("b")}
    return makers[request.param]()


def test_floats_lie_in_the_unit_interval_and_spread_over_it(rng: Rng) -> None:
    draws = [rng.random() for _ in range(1000)]
    assert all(0 <= draw < 1 for draw in draws)
    assert min(draws) < 0.1
    assert max(draws) > 0.9


def test_integers_reach_both_bounds_and_pass_neither(rng: Rng) -> None:
    assert {rng.randint(-1, 2) for _ in range(500)} == {-1, 0, 1, 2}
    assert rng.randint(7, 7) == 7


@pytest.mark.parametrize("size", [0, 1, 16, 1000])
def test_a_token_has_the_size_asked_for_and_is_not_repeated(rng: Rng, size: int) -> None:
    one, other = rng.token(size), rng.token(size)
    assert len(one) == len(other) == size
    assert size < 16 or one != other


def test_a_uuid_is_a_random_one_in_canonical_form_and_not_repeated(rng: Rng) -> None:
    made = [rng.uuid() for _ in range(100)]
    assert len(set(made)) == 100
    assert all(str(uuid.UUID(text)) == text and uuid.UUID(text).version == 4 for text in made)


def test_shuffling_keeps_the_items_and_leaves_the_list_alone(rng: Rng) -> None:
    items = [str(index) for index in range(50)]
    shuffled = rng.shuffled(items)
    assert sorted(shuffled, key=int) == items == [str(index) for index in range(50)]
    assert shuffled != items
    assert rng.shuffled([]) == []


def test_a_fork_draws_on_its_own(rng: Rng) -> None:
    one, other = rng.fork("one"), rng.fork("other")
    assert [one.random() for _ in range(5)] != [other.random() for _ in range(5)]


def test_equal_seeds_draw_equally_and_others_differently() -> None:
    def draws(rng: Rng) -> list[object]:
        return [rng.random(), rng.randint(0, 1 << 60), rng.token(20), rng.uuid(), rng.shuffled(list("abcdefgh"))]

    assert draws(SeededRng(5)) == draws(SeededRng("5")) == draws(SeededRng(5))
    assert draws(SeededRng(5)) != draws(SeededRng(6))


def test_a_seeded_fork_depends_on_seed_and_name_and_not_on_earlier_draws() -> None:
    fresh, used = SeededRng(5), SeededRng(5)
    for _ in range(10):
        used.random()
    assert fresh.fork("a").token(16) == used.fork("a").token(16)
    assert fresh.fork("a").token(16) != fresh.fork("b").token(16)
    assert fresh.fork("a").fork("b").token(16) != fresh.fork("b").fork("a").token(16)


def test_draws_of_a_seed_are_the_same_in_every_version() -> None:
    """A failing seed must stay one: these values were drawn once and are never to change."""
    assert SeededRng(1).token(8).hex() == "00f51eaaf1d92d06"
    assert SeededRng(1).fork("disk").randint(0, 10**9) == 708452170
