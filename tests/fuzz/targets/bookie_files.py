"""The small files of a bookie that people may look at, and change."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from crc32c import crc32c

from tallybook.bookie import directories, limbo, places
from tallybook.bookie.cookie import Cookie, decode_cookie
from tallybook.bookie.limbo import Limbo, load_limbo
from tallybook.bookie.places import PlaceCookie
from tallybook.bookie.text_record import decode_record, encode_record
from tallybook.core.errors import DamagedFile, ForeignDirectory

from ..harness import REFUSED, Target, attempt, finished, same
from ..one_file import OneFile

TARGET = Target(
    "bookie_files", words=(b"tallybook ", b"cookie 1\n", b"crc32c 00000000\n", b"\r\n", b"\x1c", b"\x85", b" ")
)

COOKIE = Cookie("bookie-1", "00112233-4455-6677-8899-aabbccddeeff", "5f0c")


def _body(data: bytes) -> bytes:
    """What the checksum is of: seeds have none, so that it is in nobody's way."""
    return data[: -len(b"crc32c 00000000\n")]


def _each_way(data: bytes) -> tuple[bytes, bytes]:
    return data, data + b"crc32c %08x\n" % crc32c(data)


def _values(data: bytes, kind: str, version: int) -> None:
    """It has exactly one reading: encoding what was decoded gives the same bytes again."""
    values = attempt(DamagedFile, decode_record, kind, version, data, "path")
    if values is not REFUSED:
        same(encode_record(kind, version, values), data, "a file of named values")


def some_cookies() -> Iterator[bytes]:
    """Of a bookie, and of a place."""
    yield _body(COOKIE.encode())
    yield _body(PlaceCookie("bookie-1", "uuid", "5f0c", "journal-1a2b").encode())


@TARGET.decoder(
    "bookie/text_record.py:decode_record",
    "bookie/text_record.py:_split",
    "bookie/cookie.py:decode_cookie",
    "bookie/places.py:_decode",
    "bookie/places.py:title_at",
    seeds=some_cookies,
)
def cookie(data: bytes) -> None:
    """Whose directory it is."""
    for given in _each_way(data):
        _values(given, "cookie", 1)
        _values(given, places.PLACE_KIND, places.PLACE_VERSION)
        _comes_back(given, decode_cookie)
        _comes_back(given, places._decode)
        disk = OneFile("/other/cookie", given)
        attempt((DamagedFile, ForeignDirectory), finished, places.title_at(disk, "/b", COOKIE, "/other"))


def _comes_back(data: bytes, decode: Callable[[bytes, str], Any]) -> None:
    found = attempt(DamagedFile, decode, data, "path")
    if found is not REFUSED:
        same(found.encode(), data, "a cookie")


def some_formats() -> Iterator[bytes]:
    """Without places, and with them."""
    yield _body(encode_record("format", 1, {"journal": "present", "boots": "3", "logs": "1000"}))
    yield _body(encode_record("format", 2, {"boots": "3", "journal-1a2b": "/disk1/journal", "ledgers-own": "ledgers"}))


@TARGET.decoder(
    "bookie/directories.py:_decode_format", "bookie/directories.py:read_format", "bookie/places.py:listed_places",
    "bookie/places.py:_listed", "bookie/directories.py:DataDirectory.boots", seeds=some_formats,
)  # fmt: skip
def format_file(data: bytes) -> None:
    """What a data directory is like, and where its parts lie."""
    for given in _each_way(data):
        values = attempt(DamagedFile, directories._decode_format, given, "path")
        if values is not REFUSED:
            int(values.get(directories.BOOTS, "0"))
            int(values.get(directories.LOGS, "0"))
            found = places.listed_places(values, "/b")
            places.without_places(values)
            places.values_of(found, "/b")


def some_markers() -> Iterator[bytes]:
    """Of limbo."""
    yield _body(encode_record("limbo", 1, {"events": "1", "below": "700"}))
    yield _body(encode_record("limbo", 1, {"events": "1", "below": "700", "enrolled": "no", "index": "3"}))


@TARGET.decoder("bookie/limbo.py:load_limbo", seeds=some_markers)
def limbo_marker(data: bytes) -> None:
    """How often a bookie may have lost something."""
    for given in _each_way(data):
        _values(given, limbo.KIND, limbo.VERSION)
        found = attempt(DamagedFile, finished, load_limbo(OneFile("limbo", given), "limbo"))
        if isinstance(found, Limbo):
            found.again(5)
            found.covers(7, 0)
