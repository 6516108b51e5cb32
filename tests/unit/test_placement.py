"""Ensemble placement: no bookie twice, none unfit, racks spread, disks filled evenly."""

from __future__ import annotations

from collections import Counter
from itertools import combinations, permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tallybook.client.placement.ensembles import choose_ensemble
from tallybook.client.placement.quarantine import LONGEST_SECONDS, Quarantine
from tallybook.client.placement.racks import spread, write_sets
from tallybook.client.placement.replacement import choose_replacements
from tallybook.core.answers import Incarnation
from tallybook.core.errors import EnsembleTooLarge, Fault, NotEnoughBookies
from tallybook.metadata.store import BookieInfo, BookieMode
from tallybook.runtime.rng import SeededRng


def bookie(name: str, rack: str = "", free_bytes: int = 0, *, read_only: bool = False) -> BookieInfo:
    mode = BookieMode.READ_ONLY if read_only else BookieMode.WRITABLE
    return BookieInfo(name, f"host:{name}", Incarnation(name, 1), mode, rack=rack, free_bytes=free_bytes)


def cluster(*racks: str) -> dict[str, BookieInfo]:
    """A bookie for each of these racks: a, b, c, ..."""
    return {name: bookie(name, rack) for name, rack in zip("abcdefghijklmnop", racks, strict=False)}


def racks_of(bookies: dict[str, BookieInfo], ensemble: tuple[str, ...]) -> list[str]:
    return [bookies[name].rack for name in ensemble]


NAMES = "abcdefgh"
bookies_ = st.lists(
    st.tuples(st.sampled_from(("", "r1", "r2", "r3")), st.sampled_from((0, 1, 1000, 10**12)), st.booleans()),
    min_size=1, max_size=8,
).map(lambda rows: {
    name: bookie(name, rack, free_bytes, read_only=read_only)
    for name, (rack, free_bytes, read_only) in zip(NAMES, rows, strict=False)
})  # fmt: skip
some_names = st.sets(st.sampled_from(NAMES))
policies = st.sampled_from(("random", "rack_aware"))


# --- a new ensemble -------------------------------------------------------------------------------


@given(bookies_, st.data(), some_names, policies, st.integers())
def test_an_ensemble_is_full_or_refused_and_has_no_bookie_twice_and_no_unfit_one(
    bookies, data, quarantined, policy, seed
):
    size = data.draw(st.integers(1, 8))
    write_quorum = data.draw(st.none() | st.integers(1, size))
    fit = {name for name, info in bookies.items() if info.mode is BookieMode.WRITABLE}

    def choose() -> tuple[str, ...]:
        return choose_ensemble(
            bookies, size, SeededRng(seed), write_quorum=write_quorum, quarantined=quarantined, policy=policy
        )

    if len(fit) < size:
        with pytest.raises(NotEnoughBookies):
            choose()
        return
    chosen = choose()
    assert len(chosen) == len(set(chosen)) == size
    assert fit.issuperset(chosen)
    assert len(quarantined.intersection(chosen)) == max(0, size - len(fit - quarantined)), "only as many as it takes"


@given(st.lists(st.sampled_from(("", "r1", "r2", "r3")), min_size=2, max_size=6), st.data(), st.integers())
@settings(max_examples=100)
def test_racks_are_spread_as_well_as_any_ensemble_of_the_cluster_could_be(racks, data, seed):
    bookies = cluster(*racks)
    size = data.draw(st.integers(2, len(racks)))
    write_quorum = data.draw(st.integers(1, size))
    sets = write_sets(size, write_quorum)
    chosen = racks_of(bookies, choose_ensemble(bookies, size, SeededRng(seed), write_quorum=write_quorum))
    possible = {order for some in combinations(racks, size) for order in permutations(some)}
    assert spread(chosen, sets).safe == max(spread(order, sets).safe for order in possible)
    evenness = min(sum(count**2 for count in Counter(order).values()) for order in possible)
    assert sum(count**2 for count in Counter(chosen).values()) == evenness


@pytest.mark.parametrize(("size", "write_quorum"), [(3, 3), (3, 2), (5, 3), (6, 3), (7, 2), (9, 4)])
def test_equal_racks_give_every_write_set_at_least_two_and_mostly_all_of_them(size, write_quorum):
    bookies = cluster(*("r1", "r2", "r3") * 5)
    for seed in range(20):
        chosen = choose_ensemble(bookies, size, SeededRng(seed), write_quorum=write_quorum)
        spans = spread(racks_of(bookies, chosen), write_sets(size, write_quorum))
        assert spans.safe == len(write_sets(size, write_quorum))
        assert spans.racks >= min(write_quorum, 3) * spans.safe - (2 if size % 3 else 0)


def test_the_random_policy_does_not_look_at_racks():
    bookies = cluster("r1", "r1", "r1", "r2")
    within_one = [
        seed for seed in range(100)
        if set(racks_of(bookies, choose_ensemble(bookies, 3, SeededRng(seed), policy="random"))) == {"r1"}
    ]  # fmt: skip
    assert 10 < len(within_one) < 45


@pytest.mark.parametrize(("racks", "write_quorum"), [(["r1"] * 5, 3), (["r1"] * 5, 2), (["r1", "r1", "r2"], 2)])
def test_load_spreads_over_bookies_and_positions(racks, write_quorum):
    bookies = cluster(*racks)
    seeds = range(300 * len(racks))
    ensembles = [choose_ensemble(bookies, 3, SeededRng(seed), write_quorum=write_quorum) for seed in seeds]
    for position in range(3):
        share = Counter(ensemble[position] for ensemble in ensembles)
        assert all(240 < share[name] < 360 for name in bookies)


def test_more_free_disk_means_more_ledgers_up_to_three_times_the_median():
    bookies = {
        name: bookie(name, free_bytes=free)
        for name, free in (("a", 100), ("b", 100), ("c", 200), ("d", 10**6), ("e", 0))
    }
    chosen = Counter(choose_ensemble(bookies, 1, SeededRng(seed))[0] for seed in range(9000))
    # The median of the known is 200: d counts as 600, e, which says nothing, as 200.
    for name, weight in (("a", 100), ("b", 100), ("c", 200), ("d", 600), ("e", 200)):
        assert chosen[name] == pytest.approx(9000 * weight / 1200, rel=0.15)


def test_an_ensemble_that_is_too_large_is_the_fault_of_the_caller_and_the_writable_bookies_are_named():
    bookies = {**cluster("", "", "", ""), "b": bookie("b", read_only=True)}
    with pytest.raises(NotEnoughBookies, match=r"there are 3 \(a, c, d\); read-only: b$") as lacking:
        choose_ensemble(bookies, 4, SeededRng(1))
    assert lacking.value.fault is Fault.PEER
    for few, message in ((bookies, r"there are 3 \(a, c, d\): start more"), ({}, "there are 0: start more")):
        with pytest.raises(EnsembleTooLarge, match=message) as refused:
            choose_ensemble(few, 5, SeededRng(1))
        assert (refused.value.fault, refused.value.retriable) == (Fault.CALLER, True)


# --- replacements ---------------------------------------------------------------------------------


@given(bookies_, st.data(), some_names, some_names, policies, st.integers())
def test_as_many_places_are_filled_as_there_are_fit_replacements(bookies, data, excluded, quarantined, policy, seed):
    ensemble = data.draw(st.permutations([*NAMES, "gone"]))[: data.draw(st.integers(1, 5))]
    positions = data.draw(st.sets(st.integers(0, len(ensemble) - 1)))
    write_quorum = data.draw(st.none() | st.integers(1, len(ensemble)))
    fit = {name for name, info in bookies.items() if info.mode is BookieMode.WRITABLE} - excluded - set(ensemble)
    chosen = choose_replacements(
        bookies, ensemble, positions, SeededRng(seed), write_quorum=write_quorum, excluded=excluded,
        quarantined=quarantined, policy=policy,
    )  # fmt: skip
    assert list(chosen) == sorted(positions)[: len(fit)]
    assert len(set(chosen.values())) == len(chosen)
    assert fit.issuperset(chosen.values())
    unavoidable = max(0, len(chosen) - len(fit - quarantined))
    assert len(quarantined.intersection(chosen.values())) == unavoidable


@given(st.lists(st.sampled_from(("r1", "r2", "r3")), min_size=3, max_size=9), st.data(), st.integers())
def test_a_replacement_comes_from_the_rack_that_spreads_best(racks, data, seed):
    bookies = cluster(*racks)
    size = data.draw(st.integers(2, len(racks) - 1))
    write_quorum = data.draw(st.integers(1, size))
    ensemble, spare = list(bookies)[:size], list(bookies)[size:]
    position = data.draw(st.integers(0, size - 1))
    sets = write_sets(size, write_quorum)

    def spread_with(name: str) -> tuple[int, int]:
        return spread(racks_of(bookies, (*ensemble[:position], name, *ensemble[position + 1 :])), sets)

    (chosen,) = choose_replacements(
        bookies, ensemble, [position], SeededRng(seed), write_quorum=write_quorum
    ).values()  # fmt: skip
    assert spread_with(chosen) == max(map(spread_with, spare))


def test_a_rack_that_is_lost_is_replaced_without_leaving_one_rack_alone():
    bookies = cluster("r1", "r2", "r3", "r2", "r3", "r3")
    for seed in range(20):
        # a and b are gone with their racks' switches; c, of r3, stays: replacements of r3 alone would be no spread.
        chosen = choose_replacements(bookies, ("a", "b", "c"), (0, 1), SeededRng(seed))
        assert {bookies[name].rack for name in chosen.values()} == {"r2", "r3"}


def test_where_the_spread_is_the_same_a_replacement_comes_from_the_rack_with_the_fewest_members():
    bookies = cluster("r1", "r2", "r2", "r1", "r1", "r2")
    for seed in range(20):
        chosen = choose_replacements(bookies, ("a", "b", "c", "d"), (3,), SeededRng(seed))
        assert bookies[chosen[3]].rack == "r1"


# --- quarantine -----------------------------------------------------------------------------------


def test_failing_again_doubles_the_time_up_to_the_limit():
    quarantine, now, lasted = Quarantine(60), 0.0, []
    for _ in range(8):
        quarantine.failed("a", now)
        began = now
        while "a" in quarantine.now(now):
            now += 30
        lasted.append(now - began)
    assert lasted == [60, 120, 240, 480, 960, LONGEST_SECONDS, LONGEST_SECONDS, LONGEST_SECONDS]


def test_many_failures_of_the_same_trouble_count_once():
    quarantine = Quarantine(60)
    for second in range(60):
        quarantine.failed("a", second)
    assert quarantine.now(60) == set()


def test_keeping_out_of_trouble_for_as_long_again_wipes_the_slate():
    quarantine = Quarantine(60)
    quarantine.failed("a", now=100)
    quarantine.failed("a", now=219)
    assert quarantine.now(338) == {"a"}, "the second time, twice as long"
    quarantine.failed("a", now=219 + 120 + 120)
    assert quarantine.now(459 + 60) == set(), "after 120 s of good conduct a first time again"


def test_a_first_time_above_the_limit_stays_as_it_is_and_no_time_avoids_no_bookie():
    quarantine = Quarantine(2 * LONGEST_SECONDS)
    quarantine.failed("a", now=0)
    quarantine.failed("a", now=2 * LONGEST_SECONDS)
    assert quarantine.now(4 * LONGEST_SECONDS - 1) == {"a"}
    assert quarantine.now(4 * LONGEST_SECONDS) == set()
    off = Quarantine(0)
    off.failed("a", now=0)
    assert off.now(0) == set()
