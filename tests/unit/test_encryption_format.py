"""Encrypted frames and wrapped keys: decoded as encoded, and nothing else is accepted."""

from typing import Any

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given
from hypothesis import strategies as st

from tallybook.archive.objects.encryption.format import (
    ENCRYPTED_FRAME_BYTES,
    FRAME_BYTES,
    NONCE_BYTES,
    RECORD_BYTES,
    TAG_BYTES,
    WrappedKey,
    decode_key,
    encode_key,
    encrypt_frames,
    encrypted_bytes,
    frames_of,
    open_frames,
    plain_bytes_of,
    unwrap,
    wrap,
)
from tallybook.core.errors import DamagedFile, NewerFormat

from ..support.damage import flipped

CIPHER = AESGCM(bytes(range(32)))
KEY = "ledgers/a.parquet"
DATA_KEY = b"d" * 32
WRAPPING = b"w" * 32
SIZES = st.one_of(
    st.integers(0, 100),
    st.builds(lambda frames, more: max(0, frames * FRAME_BYTES + more), st.integers(1, 3), st.integers(-2, 2)),
)


def sealed(size: int) -> tuple[bytes, bytes]:
    plain = bytes(at * 7 % 251 for at in range(256)) * (size // 256 + 1)
    return plain[:size], encrypt_frames(CIPHER, KEY, 0, plain[:size], ends=True)


@given(SIZES)
def test_sizes_of_plaintext_and_ciphertext_determine_each_other(size: int):
    plain, data = sealed(size)
    assert len(data) == encrypted_bytes(size)
    assert plain_bytes_of(len(data)) == size
    assert open_frames(CIPHER, KEY, range(frames_of(size)), size, data) == plain


@given(st.integers(1, 3 * FRAME_BYTES + 5), st.data())
def test_any_range_comes_back_from_the_frames_that_it_touches(size: int, draw: Any):
    plain, data = sealed(size)
    offset = draw.draw(st.integers(0, size - 1))
    wanted = draw.draw(st.integers(1, size - offset))
    frames = range(offset // FRAME_BYTES, (offset + wanted - 1) // FRAME_BYTES + 1)
    part = data[frames.start * ENCRYPTED_FRAME_BYTES : frames.stop * ENCRYPTED_FRAME_BYTES]
    skip = offset - frames.start * FRAME_BYTES
    assert open_frames(CIPHER, KEY, frames, size, part, skip=skip, size=wanted) == plain[offset : offset + wanted]


SIZE = 2 * FRAME_BYTES + 100


def swapped(data: bytes) -> bytes:
    end = 2 * ENCRYPTED_FRAME_BYTES
    return data[ENCRYPTED_FRAME_BYTES:end] + data[:ENCRYPTED_FRAME_BYTES] + data[end:]


@pytest.mark.parametrize(
    ("what", "key", "size", "change"),
    [
        ("a bit", KEY, SIZE, lambda data: data[:5] + bytes([data[5] ^ 1]) + data[6:]),
        ("a tag", KEY, SIZE, lambda data: data[:-1] + bytes([data[-1] ^ 1])),
        ("the order of frames", KEY, SIZE, swapped),
        ("the object", "ledgers/b.parquet", SIZE, lambda data: data),
        ("an end at a frame", KEY, 2 * FRAME_BYTES, lambda data: data[: 2 * ENCRYPTED_FRAME_BYTES]),
        ("an end within a frame", KEY, 2 * FRAME_BYTES + 50, lambda data: data[:-50]),
        ("more behind the end", KEY, 4 * FRAME_BYTES, lambda data: data + bytes(2 * ENCRYPTED_FRAME_BYTES)),
        ("a frame too short to have a tag", KEY, SIZE, lambda data: data[: 2 * ENCRYPTED_FRAME_BYTES + TAG_BYTES - 1]),
    ],
)
def test_frames_that_were_changed_moved_cut_off_or_exchanged_are_found_out(what, key, size, change):
    _, data = sealed(SIZE)
    with pytest.raises(DamagedFile, match="frame"):
        open_frames(CIPHER, key, range(frames_of(size)), size, change(data))


def test_no_two_frames_of_an_object_are_alike():
    plain = bytes(3 * FRAME_BYTES)
    data = encrypt_frames(CIPHER, KEY, 0, plain, ends=True)
    frames = {data[at : at + ENCRYPTED_FRAME_BYTES] for at in range(0, len(data), ENCRYPTED_FRAME_BYTES)}
    assert len(frames) == 3
    assert encrypt_frames(CIPHER, KEY, 2, plain[:FRAME_BYTES], ends=False) not in frames


def a_key(name: str = "2026-k1", size: int = SIZE) -> WrappedKey:
    return wrap(DATA_KEY, name, WRAPPING, b"n" * NONCE_BYTES, size, KEY)


@given(st.from_regex(r"[A-Za-z0-9._-]{1,32}", fullmatch=True), st.integers(0, 1 << 48))
def test_a_wrapped_key_comes_back(name: str, size: int):
    key = a_key(name, size)
    assert len(encode_key(key)) == RECORD_BYTES
    assert decode_key(encode_key(key), KEY) == key
    assert unwrap(key, WRAPPING, KEY) == DATA_KEY


def test_the_bytes_of_a_wrapped_key_are_what_the_page_of_the_format_says():
    record = encode_key(a_key())
    assert record[:8] == b"TBSK\x01\x01\x10\x07"
    assert record[8:40] == b"2026-k1".ljust(32, b"\0")
    assert record[40:48] == SIZE.to_bytes(8, "little")
    assert record[48:60] == b"n" * NONCE_BYTES
    assert RECORD_BYTES == 112


@given(st.integers(0, RECORD_BYTES * 8 - 1))
def test_a_wrapped_key_with_one_bit_changed_opens_nothing(bit: int):
    with pytest.raises((DamagedFile, NewerFormat)):
        decode_key(flipped(encode_key(a_key()), bit), KEY)


def test_a_wrapped_key_opens_for_its_object_its_size_and_its_key_alone():
    key = a_key()
    other_size = WrappedKey(key.wrapping, key.plain_bytes + 1, key.nonce, key.wrapped)
    other_name = WrappedKey("2026-k2", key.plain_bytes, key.nonce, key.wrapped)
    for found, secret, identity in [
        (key, b"v" * 32, KEY), (key, WRAPPING, KEY + "x"), (other_size, WRAPPING, KEY), (other_name, WRAPPING, KEY),
    ]:  # fmt: skip
        with pytest.raises(DamagedFile, match="cannot be unwrapped"):
            unwrap(found, secret, identity)


@pytest.mark.parametrize("size", [0, 1, RECORD_BYTES - 1, RECORD_BYTES + 1])
def test_what_is_no_wrapped_key_is_refused(size: int):
    with pytest.raises(DamagedFile):
        decode_key((encode_key(a_key()) + b"x")[:size], KEY)


def test_no_text_of_a_wrapped_key_shows_what_is_secret():
    key = a_key()
    assert DATA_KEY.decode() not in repr(key)
    assert key.wrapped.hex() not in repr(key)
    assert "wrapped" not in repr(key)
