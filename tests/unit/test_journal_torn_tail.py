"""Torn tail or damage: decisions on constructed findings."""

from dataclasses import replace

from tallybook.bookie.journal.format import BlockHeader, JournalMark, RingGeometry
from tallybook.bookie.journal.superblock import Superblock
from tallybook.bookie.journal.torn_tail import BlockRange, Chain, DamageKind, JournalDamage, loses_records

FACTS = Superblock(
    sequence=8,
    instance=bytes(16),
    boot=3,
    clean=False,
    trim=JournalMark(7, 100),
    begin=JournalMark(7, 101),
    prepared=9,
    geometry=RingGeometry(16384, 4),
    previous_clean=False,
    previous_end=JournalMark(5, 60),
    previous_damage=0,
)
"""Nothing trimmed in this boot yet: blocks begin at 101."""


def header(block: int, *, segment: int = 7, previous_crc: int | None = None) -> BlockHeader:
    """Block ``block``, whose CRC is its number."""
    previous = (0 if block == 101 else block - 1) if previous_crc is None else previous_crc
    return BlockHeader(bytes(16), segment, block, 4096, 1, 500, previous, 1, False, block)


def walk(*steps: tuple, facts: Superblock = FACTS) -> tuple:
    """Feed a chain: ("block", path, offset, number), ("torn", ...), ("hole", path, offset), (kind, path, offset)."""
    chain = Chain(facts)
    for kind, path, offset, *number in steps:
        if kind in {"block", "torn"}:
            chain.block(path, offset, header(*number), intact=kind == "block")
        elif kind == "hole":
            chain.hole(path, offset)
        else:
            chain.broken(kind, path, offset)
    return chain.findings()


def test_consecutive_blocks_are_one_run_a_file() -> None:
    found = walk(
        ("block", "b", 4096, 101), ("block", "b", 8192, 102), ("block", "a", 4096, 103), ("block", "a", 8192, 104)
    )
    assert found.ranges == (BlockRange("b", 7, 4096, 12288, 101, 102), BlockRange("a", 7, 4096, 12288, 103, 104))
    assert found.damage == ()
    assert found.end == JournalMark(7, 104)


def test_what_fails_with_nothing_behind_it_is_the_tail() -> None:
    for tail in ([("hole", "a", 8192)], [("torn", "a", 8192, 102)], [("torn", "a", 8192, 102), ("hole", "a", 12288)]):
        found = walk(("block", "a", 4096, 101), *tail)
        assert (found.damage, found.end) == ((), JournalMark(7, 101))
    assert walk(("hole", "a", 4096)).damage == (), "nothing was written yet"


def test_j16_what_fails_with_a_block_behind_it_is_damage() -> None:
    for failing in (("hole", "a", 8192), ("torn", "a", 8192, 102)):
        found = walk(("block", "a", 4096, 101), failing, ("block", "a", 12288, 103))
        assert found.damage == (JournalDamage(DamageKind.BLOCK, "a", 8192, 102, 102),)
        assert [run.first_block for run in found.ranges] == [101, 103]


def test_a_header_alone_proves_the_blocks_before_it() -> None:
    found = walk(("block", "a", 4096, 101), ("hole", "a", 8192), ("torn", "a", 12288, 103))
    assert found.damage == (JournalDamage(DamageKind.BLOCK, "a", 8192, 102, 102),)
    assert found.end == JournalMark(7, 101), "103 itself is the tail"


def test_two_damaged_places_are_two_findings() -> None:
    found = walk(
        ("block", "a", 4096, 101), ("hole", "a", 8192), ("block", "a", 12288, 103),
        ("torn", "b", 4096, 104), ("block", "b", 8192, 105),
    )  # fmt: skip
    assert [(d.path, d.first_block, d.last_block) for d in found.damage] == [("a", 102, 102), ("b", 104, 104)]


def test_the_unused_end_of_a_segment_is_no_damage() -> None:
    found = walk(("block", "a", 4096, 101), ("hole", "a", 8192), ("block", "b", 4096, 102))
    assert found.damage == ()


def test_a_block_that_is_not_the_one_its_successor_followed_is_damage() -> None:
    for previous_crc in (1, 999):
        chain = Chain(FACTS)
        chain.block("a", 4096, header(101), intact=True)
        chain.block("a", 8192, header(102, previous_crc=previous_crc), intact=True)
        assert chain.findings().damage == (JournalDamage(DamageKind.CHAIN, "a", 8192, 101, 101),)


def test_a_block_number_that_was_seen_before_is_not_followed() -> None:
    for seen in (101, 102):
        found = walk(("block", "a", 4096, 101), ("block", "a", 8192, 102), ("block", "b", 4096, seen))
        assert ([run.path for run in found.ranges], found.damage) == (["a"], ())


def test_a_broken_segment_with_nothing_behind_it_may_have_held_any_number_of_blocks() -> None:
    found = walk(("block", "a", 4096, 101), (DamageKind.MISSING, "b", 0))
    assert found.damage == (JournalDamage(DamageKind.MISSING, "b", 0, 102, None),)
    assert loses_records(found.damage)


def test_a_broken_segment_that_held_nothing_is_named_and_loses_nothing() -> None:
    found = walk(("block", "a", 4096, 101), (DamageKind.HEADER, "b", 0), ("block", "b", 4096, 102))
    assert found.damage == (JournalDamage(DamageKind.HEADER, "b", 0),)
    assert not loses_records(found.damage)


def test_what_a_broken_segment_held_is_known_when_a_later_block_turns_up() -> None:
    found = walk(("block", "a", 4096, 101), (DamageKind.SHORT, "a", 8192), ("block", "b", 4096, 105))
    assert found.damage == (JournalDamage(DamageKind.SHORT, "a", 8192, 102, 104),)
    assert str(found.damage[0]) == "a at 8192: short; blocks 102 .. 104 are lost"


def test_rot_among_trimmed_blocks_is_no_loss() -> None:
    facts = replace(FACTS, trim=JournalMark(7, 103))
    found = walk(
        ("block", "a", 4096, 101), ("hole", "a", 8192), ("block", "b", 4096, 104), ("hole", "b", 8192), facts=facts
    )
    assert (found.damage, [run.first_block for run in found.ranges]) == ((), [104])
    found = walk(("hole", "a", 4096), ("block", "a", 8192, 103), ("hole", "a", 12288), facts=facts)
    assert (found.damage, found.end) == ((), JournalMark(7, 103))


def test_when_the_trimmed_block_itself_is_gone_its_successors_are_unknown() -> None:
    for trim, before in ((103, [("block", "a", 4096, 101)]), (101, [])):
        found = walk(*before, ("hole", "a", 8192), facts=replace(FACTS, trim=JournalMark(7, trim)))
        assert found.damage == (JournalDamage(DamageKind.BLOCK, "a", 8192, trim + 1, None),)


def test_block_numbers_of_the_next_life_are_above_any_that_may_be_on_the_disk() -> None:
    begin = FACTS.next_begin()
    assert begin.segment == FACTS.prepared + 1
    assert begin.block > FACTS.trim.block + 3 * FACTS.geometry.blocks_per_segment
    clean = replace(FACTS, clean=True)
    assert clean.next_begin() == JournalMark(10, 101)
