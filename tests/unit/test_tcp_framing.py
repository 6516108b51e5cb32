"""Frames of the TCP transport, however the bytes arrive."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallybook.core.errors import ProtocolViolation
from tallybook.runtime.tcp.framing import (
    FIRST_BYTES,
    LARGE_BYTES,
    SCRATCH_BYTES,
    FrameReader,
    Signal,
    encode_signal,
    length_prefix,
)

LIMIT = 2 * FIRST_BYTES + 5

SIZES = st.one_of(
    st.integers(0, 40),
    st.integers(LARGE_BYTES - 2, LARGE_BYTES + 2),
    st.sampled_from((FIRST_BYTES - 1, FIRST_BYTES, FIRST_BYTES + 1, LIMIT)),
)
FRAMES = st.lists(st.one_of(SIZES, st.sampled_from(Signal)), max_size=8)
"""Signals, and the sizes of messages."""
PIECES = st.lists(st.sampled_from((3, 4, 5, 100, LARGE_BYTES, LARGE_BYTES + 4, FIRST_BYTES)), min_size=1, max_size=20)


def expected(frames) -> list[object]:
    return [each if isinstance(each, Signal) else bytes([each % 251]) * each for each in frames]


def encoded(frames) -> bytes:
    return b"".join(
        encode_signal(each) if isinstance(each, Signal) else length_prefix(each) + each for each in expected(frames)
    )


def fed(reader: FrameReader, data: bytes, pieces) -> list[object]:
    """Feed a reader in pieces of these sizes, in turn; returns the frames."""
    found, at, turn = [], 0, 0
    while at < len(data):
        space = reader.space()
        size = min(pieces[turn % len(pieces)], len(space), len(data) - at)
        space[:size] = data[at : at + size]
        found += reader.filled(size)
        at, turn = at + size, turn + 1
    return found


@given(FRAMES, PIECES)
def test_frames_come_out_as_they_went_in_however_they_are_cut(frames, pieces):
    reader = FrameReader(memoryview(bytearray(SCRATCH_BYTES)), LIMIT)
    assert fed(reader, encoded(frames), pieces) == expected(frames)


@given(FRAMES, FRAMES, PIECES)
def test_readers_that_share_a_scratch_buffer_do_not_mix_their_bytes(ours, theirs, pieces):
    scratch = memoryview(bytearray(SCRATCH_BYTES))
    one, other = FrameReader(scratch, LIMIT), FrameReader(scratch, LIMIT)
    ours_left, theirs_left = encoded(ours), encoded(theirs)
    found_ours, found_theirs = [], []
    for size in pieces:
        found_ours += fed(one, ours_left[:size], [size])
        found_theirs += fed(other, theirs_left[:size], [size])
        ours_left, theirs_left = ours_left[size:], theirs_left[size:]
    assert found_ours + fed(one, ours_left, pieces) == expected(ours)
    assert found_theirs + fed(other, theirs_left, pieces) == expected(theirs)


def test_a_message_above_the_limit_is_refused_by_its_length_alone():
    reader = FrameReader(memoryview(bytearray(SCRATCH_BYTES)), LIMIT)
    with pytest.raises(ProtocolViolation, match=str(LIMIT + 1)):
        fed(reader, (LIMIT + 1).to_bytes(4, "little"), [4])


def test_a_large_message_takes_no_memory_before_it_arrives():
    reader = FrameReader(memoryview(bytearray(SCRATCH_BYTES)), LIMIT)
    assert fed(reader, LIMIT.to_bytes(4, "little"), [4]) == []
    assert len(reader.space()) <= FIRST_BYTES
