"""The benchmarks of storage upkeep: what their arithmetic says, without a cluster."""

from array import array

import pytest

from tallybook.bench.add_load import TimedAdds
from tallybook.bench.bookies import metadata_in
from tallybook.bench.gates import PEER, TALLYBOOK
from tallybook.bench.pages import verdict
from tallybook.bench.programs import ProgramFailed
from tallybook.bench.storage.catch_up import Turn, figures_of, rate_of
from tallybook.bench.storage.gates import GATES, PARTS
from tallybook.bench.storage.gates import PEER as PEER_PART
from tallybook.bench.storage.loads import MARK
from tallybook.bench.storage.mixture import ENTRY_BYTES, SMALLEST_BYTES, Ledger, sizes, some_of
from tallybook.bench.storage.rot import flip
from tallybook.bench.storage.windows import Latencies, Window, save
from tallybook.core.errors import InvalidArgument
from tallybook.core.limits import MIB

MS = 1_000_000

# -- gates -------------------------------------------------------------------------------------


def test_every_gate_of_storage_is_on_another_figure_and_of_a_part_that_can_be_switched_off():
    assert len({gate.figure for gate in GATES}) == len(GATES)
    assert {gate.workload for gate in GATES} == {*PARTS, PEER_PART}
    assert all(verdict(gate, {}).startswith("MISSING") for gate in GATES)


def test_one_entry_that_was_lost_is_one_too_many():
    lost = next(gate for gate in GATES if gate.figure == "brim_lost")
    assert lost.met_by(0)
    assert not lost.met_by(1)


# -- latencies in windows ----------------------------------------------------------------------


def adds(*pairs: tuple[int, int]) -> TimedAdds:
    return TimedAdds(array("q", [at for at, _ in pairs]), array("q", [ms * MS for _, ms in pairs]))


def test_a_window_counts_what_was_planned_in_it_whenever_it_ended():
    found = Latencies(adds((10, 1), (30, 900), (20, 2), (40, 4)))
    assert found.p99_ms(Window(10, 30)) == 2
    assert found.p99_ms(Window(30, 41)) == 900
    assert found.p99_ms(Window(31, 41)) == 4


def test_a_window_in_which_nothing_was_planned_says_nothing():
    with pytest.raises(InvalidArgument, match="no entry"):
        Latencies(adds((10, 1))).p99_ms(Window(11, 20))


def test_latencies_come_back_from_a_file(tmp_path):
    save(adds((5, 3), (6, 7)), tmp_path / "samples")
    assert Latencies.load(tmp_path / "samples").p99_ms(Window(5, 6)) == 3
    assert Latencies.load(tmp_path / "samples").p99_ms(Window(6, 7)) == 7


def test_a_window_says_how_long_it_is():
    assert Window(1_000 * MS, 3_500 * MS).seconds == 2.5


# -- what a bookie is filled with --------------------------------------------------------------


def test_a_fill_has_many_small_ledgers_and_most_of_its_bytes_in_large_ones():
    total = 640 * MIB
    found = sizes(1, total)
    assert total <= sum(size for size, _ in found) <= total + 2 * MIB
    assert {entry_bytes for _, entry_bytes in found} == set(ENTRY_BYTES)
    assert all(size >= SMALLEST_BYTES // 2 and size % entry_bytes == 0 for size, entry_bytes in found)
    middle = sorted(size for size, _ in found)[len(found) // 2]
    assert sum(size for size, _ in found if size > middle) > 0.8 * total
    assert sizes(1, total) == found != sizes(2, total)


def test_what_is_deleted_is_drawn_from_all():
    ledgers = [Ledger(number, number) for number in range(200)]
    chosen = some_of(ledgers, 90)
    assert len({each.ledger_id for each in chosen}) == 180
    assert {each.ledger_id for each in chosen} != set(range(180))
    assert {each.ledger_id for each in chosen} != set(range(20, 200))


# -- readers that catch up ---------------------------------------------------------------------


def test_the_rate_of_readers_is_that_between_their_first_and_their_last_word():
    told = [{"bytes": 50, "seconds": 1.0}, {"bytes": 51, "seconds": 2.0}, {"bytes": 250, "seconds": 3.0}]
    assert rate_of(told) == 100
    with pytest.raises(ProgramFailed):
        rate_of(told[:1])


def test_catching_up_is_compared_with_the_peer_turn_by_turn():
    turns = [
        {TALLYBOOK: Turn(10, 12, 1e6), PEER: Turn(10, 24, 1e6)},
        {TALLYBOOK: Turn(10, 30, 5e5), PEER: Turn(10, 30, 1e6)},
        {TALLYBOOK: Turn(10, 11, 1e6), PEER: Turn(10, 22, 1e6)},
    ]
    found = figures_of(turns, {TALLYBOOK: 2e6, PEER: 1e6})
    assert (found["catch_up_p99_ratio"], found["peer_catch_up_p99_ratio"]) == (1.2, 2.4)
    assert found["catch_up_to_peer"] == 0.5
    assert (found["catch_up_rate_part"], found["peer_catch_up_rate_part"]) == (0.25, 1)


def test_without_a_peer_there_is_nothing_to_compare_with():
    found = figures_of([{TALLYBOOK: Turn(10, 12, 1e6)}], {TALLYBOOK: 2e6})
    assert found["catch_up_p99_ratio"] == 1.2
    assert "catch_up_to_peer" not in found
    assert "peer_catch_up_p99_ratio" not in found


# -- a byte that flips -------------------------------------------------------------------------


@pytest.mark.parametrize("part", [0.0, 0.5, 0.999])
def test_the_byte_that_flips_is_one_of_a_payload(tmp_path, part):
    log = tmp_path / "log"
    before = bytes(1000) + MARK + bytes(2000) + MARK + bytes(1000)
    log.write_bytes(before)
    flip(log, part)
    after = log.read_bytes()
    [at] = [position for position, (one, other) in enumerate(zip(before, after, strict=True)) if one != other]
    assert before[at : at + len(MARK)] == MARK


def test_a_log_without_a_payload_is_refused(tmp_path):
    (tmp_path / "log").write_bytes(bytes(1000))
    with pytest.raises(ProgramFailed):
        flip(tmp_path / "log", 0.5)


def test_the_metadata_of_bookies_lie_beside_them(tmp_path):
    assert metadata_in(tmp_path) == f"sqlite://{tmp_path}/metadata.db"
