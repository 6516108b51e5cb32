"""Quorum arithmetic against its definition: brute force over every shape up to six bookies."""

from itertools import chain, combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallybook.core.errors import InvalidArgument
from tallybook.core.ids import MAX_ID
from tallybook.core.limits import MAX_ENSEMBLE, MAX_STRIPE_ENTRIES
from tallybook.core.quorum import Quorum

SHAPES = [(e, w, a) for e in range(1, 7) for w in range(1, e + 1) for a in range(1, w + 1)]
each_shape = pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: "{}-{}-{}".format(*shape))


def subsets(positions):
    members = list(positions)
    return [frozenset(s) for s in chain.from_iterable(combinations(members, n) for n in range(len(members) + 1))]


def write_set_by_definition(quorum, entry_id):
    start = entry_id // quorum.stripe_entries
    return [(start + i) % quorum.ensemble for i in range(quorum.write_quorum)]


@each_shape
@pytest.mark.parametrize("stripe", [1, 3, 1024])
def test_the_write_set_is_the_documented_run_of_the_ensemble(shape, stripe):
    quorum = Quorum(*shape, stripe_entries=stripe)
    for entry_id in [*range(40), *range(1020, 1030), 6143, 6144, 10**12, MAX_ID]:
        members = quorum.write_set(entry_id)
        assert sorted(members) == sorted(write_set_by_definition(quorum, entry_id))
        if quorum.striped:
            assert list(members) == write_set_by_definition(quorum, entry_id)


@each_shape
def test_write_sets_lists_each_one_that_occurs_and_no_other(shape):
    quorum = Quorum(*shape, stripe_entries=2)
    occurring = {frozenset(quorum.write_set(entry_id)) for entry_id in range(100)}
    assert {frozenset(members) for members in quorum.write_sets()} == occurring


@each_shape
def test_an_entry_is_acked_by_any_ack_quorum_of_its_write_set_and_by_nothing_less(shape):
    quorum = Quorum(*shape, stripe_entries=1)
    for entry_id in range(quorum.ensemble + 1):
        members = set(write_set_by_definition(quorum, entry_id))
        for answered in subsets(range(quorum.ensemble)):
            assert quorum.acked(answered, entry_id) == (len(members & answered) >= quorum.ack_quorum)


@each_shape
def test_coverage_means_that_no_ack_quorum_can_form_without_a_responder(shape):
    quorum = Quorum(*shape, stripe_entries=1)
    for answered in subsets(range(quorum.ensemble)):
        silent = set(range(quorum.ensemble)) - answered
        can_form = any(
            set(ack_quorum) <= silent
            for entry_id in range(quorum.ensemble)
            for ack_quorum in combinations(write_set_by_definition(quorum, entry_id), quorum.ack_quorum)
        )
        assert quorum.covered(answered) == (not can_form)


@each_shape
def test_positions_are_visible_if_every_covering_set_of_answers_includes_one(shape):
    quorum = Quorum(*shape)
    covering = [answered for answered in subsets(range(quorum.ensemble)) if quorum.covered(answered)]
    for known in subsets(range(quorum.ensemble)):
        assert quorum.visible(known) == all(known & answered for answered in covering)


@each_shape
def test_absence_means_that_every_possible_ack_quorum_has_a_member_without_the_entry(shape):
    quorum = Quorum(*shape, stripe_entries=1)
    for entry_id in range(quorum.ensemble):
        quorums = [set(q) for q in combinations(write_set_by_definition(quorum, entry_id), quorum.ack_quorum)]
        for absent in subsets(range(quorum.ensemble)):
            assert quorum.absent(absent, entry_id) == all(q & absent for q in quorums)


@each_shape
def test_writable_means_that_every_entry_can_still_be_acked(shape):
    quorum = Quorum(*shape, stripe_entries=1)
    for alive in subsets(range(quorum.ensemble)):
        assert quorum.writable(alive) == all(quorum.acked(alive, entry_id) for entry_id in range(quorum.ensemble))


@each_shape
def test_one_member_less_than_decisive_decides_nothing(shape):
    quorum = Quorum(*shape, stripe_entries=1)
    members = quorum.write_set(0)
    assert quorum.absent(members[: quorum.decisive], 0)
    assert not quorum.absent(members[: quorum.decisive - 1], 0)


@given(st.integers(0, MAX_ID), st.integers(1, MAX_STRIPE_ENTRIES), st.sampled_from(SHAPES))
def test_entries_up_to_the_stripe_end_share_a_write_set_and_the_next_one_begins_another_stripe(entry_id, stripe, shape):
    quorum = Quorum(*shape, stripe_entries=stripe)
    end = quorum.stripe_end(entry_id)
    assert entry_id <= end <= MAX_ID
    assert quorum.write_set(end) == quorum.write_set(entry_id)
    if quorum.striped:
        assert end - entry_id < stripe
        assert end == MAX_ID or (end + 1) % stripe == 0
    else:
        assert end == MAX_ID


@pytest.mark.parametrize(
    "sizes",
    [
        (0, 0, 0), (3, 3, 0), (3, 2, 3), (2, 3, 2), (3, 0, 0), (-1, -1, -1), (MAX_ENSEMBLE + 1, 3, 2), (3, 3, 2, 0),
        (3, 3, 2, -1), (3, 3, 2, MAX_STRIPE_ENTRIES + 1), (3.0, 3, 2), (3, 3, "2"), (3, 3, True), (None, 3, 2),
    ],
)  # fmt: skip
def test_sizes_outside_their_domain_are_refused(sizes):
    with pytest.raises(InvalidArgument):
        Quorum(*sizes)


def test_the_largest_ensemble_is_allowed_and_equal_shapes_are_equal():
    assert len(Quorum(MAX_ENSEMBLE, 2, 2).write_sets()) == MAX_ENSEMBLE
    assert Quorum(3, 3, 2) == Quorum(3, 3, 2, 1024)
    assert Quorum(3, 3, 2) != Quorum(3, 3, 1)
