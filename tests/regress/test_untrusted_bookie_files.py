"""Files of a bookie with a valid checksum and impossible content are damaged."""

from __future__ import annotations

from dataclasses import replace

import pytest
from crc32c import crc32c

from tallybook.bookie.directories import storage_directories as places
from tallybook.bookie.directories.cookie import Cookie, decode_cookie
from tallybook.bookie.directories.storage_directories import DirectoryCookie
from tallybook.bookie.journal.format import JournalMark, RingGeometry
from tallybook.bookie.journal.superblock import Superblock, decode_slot, encode_slot
from tallybook.bookie.storage.text_record import decode_record
from tallybook.core.errors import DamagedFile
from tallybook.core.limits import BLOCK_BYTES

SLOT = Superblock(
    4, bytes(16), 2, False, JournalMark(1, 0), JournalMark(1, 1), 1,
    RingGeometry(4 * BLOCK_BYTES, 3), True, JournalMark(0, 0), 0
)  # fmt: skip


@pytest.mark.parametrize(
    "changed",
    [
        replace(SLOT, geometry=RingGeometry(4 * BLOCK_BYTES, 0)),
        replace(SLOT, geometry=RingGeometry(0, 3)),
        replace(SLOT, geometry=RingGeometry(4 * BLOCK_BYTES + 1, 3)),
        replace(SLOT, prepared=1 + 4),
        replace(SLOT, prepared=2**64 - 1),
    ],
)
def test_a_superblock_of_a_ring_that_cannot_be_is_no_superblock(changed: Superblock):
    assert decode_slot(encode_slot(SLOT)) == SLOT
    assert decode_slot(encode_slot(changed)) is None


COOKIE = Cookie("bookie-1", "00112233-4455-6677-8899-aabbccddeeff", "5f0c").encode()[:-16]


@pytest.mark.parametrize(
    "changed",
    [
        COOKIE.replace(b"\n", b"\r\n"),
        COOKIE.replace(b"5f0c", b"5f0c "),
        COOKIE.replace(b"5f0c", b"5f 0c"),
        COOKIE.replace(b"cluster_id 5f0c\n", b"cluster_id 5f0c\x1clayout journal,ledgers,index\n"),
        COOKIE.replace(b"bookie_id bookie-1\n", b"bookie_id other\nbookie_id bookie-1\n"),
        COOKIE.replace(b"bookie-1", b"b\xffokie"),
        COOKIE[:-1],
        COOKIE.replace(b"layout journal,ledgers,index\n", b""),
        COOKIE.replace(b"cluster_id 5f0c\n", b"") + b"cluster_id 5f0c\n",
    ],
)
def test_a_file_of_named_values_has_one_reading_only(changed: bytes):
    with pytest.raises(DamagedFile):
        decode_cookie(changed + b"crc32c %08x\n" % crc32c(changed), "cookie")


def test_a_cookie_of_a_place_holds_its_values_in_their_order():
    body = DirectoryCookie("b", "uuid", "5f", "journal-own").encode()[:-16]
    for changed in (body.replace(b"place journal-own\n", b""), body.replace(b"bookie_id b\n", b"") + b"bookie_id b\n"):
        with pytest.raises(DamagedFile, match="the cookie of a storage directory"):
            places._decode(changed + b"crc32c %08x\n" % crc32c(changed), "cookie")


def test_an_empty_line_is_no_value():
    body = b"tallybook limbo 1\n\n"
    with pytest.raises(DamagedFile):
        decode_record("limbo", 1, body + b"crc32c %08x\n" % crc32c(body), "limbo")
