"""Fuzz target: the small files of a bookie that operators may read and change."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from crc32c import crc32c

from tallybook.bookie.directories import layout as directories
from tallybook.bookie.directories import limbo
from tallybook.bookie.directories import storage_directories as places
from tallybook.bookie.directories.cookie import Cookie, decode_cookie
from tallybook.bookie.directories.limbo import Limbo, load_limbo
from tallybook.bookie.directories.storage_directories import DirectoryCookie
from tallybook.bookie.storage.text_record import decode_record, encode_record
from tallybook.core.errors import DamagedFile, ForeignDirectory

from ..harness import REFUSED, Target, attempt, finished, same
from ..one_file_disk import OneFile

TARGET = Target(
    "bookie_files", words=(b"tallybook ", b"cookie 1\n", b"crc32c 00000000\n", b"\r\n", b"\x1c", b"\x85", b" ")
)

COOKIE = Cookie("bookie-1", "00112233-4455-6677-8899-aabbccddeeff", "5f0c")


def _body(data: bytes) -> bytes:
    """The bytes under the checksum: seeds have none, so that mutations are not rejected by it."""
    return data[: -len(b"crc32c 00000000\n")]


def _each_way(data: bytes) -> tuple[bytes, bytes]:
    return data, data + b"crc32c %08x\n" % crc32c(data)


def _values(data: bytes, kind: str, version: int) -> None:
    """The encoding is canonical: encoding the decoded value gives the same bytes."""
    values = attempt(DamagedFile, decode_record, kind, version, data, "path")
    if values is not REFUSED:
        same(encode_record(kind, version, values), data, "a file of named values")


def some_cookies() -> Iterator[bytes]:
    """Cookies of a bookie, and of a storage directory."""
    yield _body(COOKIE.encode())
    yield _body(DirectoryCookie("bookie-1", "uuid", "5f0c", "journal-1a2b").encode())


@TARGET.decoder(
    "bookie/storage/text_record.py:decode_record",
    "bookie/storage/text_record.py:_split",
    "bookie/directories/cookie.py:decode_cookie",
    "bookie/directories/storage_directories.py:_decode",
    "bookie/directories/storage_directories.py:title_at",
    seeds=some_cookies,
)
def cookie(data: bytes) -> None:
    """The cookie: the bookie that the directory belongs to."""
    for given in _each_way(data):
        _values(given, "cookie", 1)
        _values(given, places.DIRECTORY_KIND, places.DIRECTORY_VERSION)
        _comes_back(given, decode_cookie)
        _comes_back(given, places._decode)
        disk = OneFile("/other/cookie", given)
        attempt((DamagedFile, ForeignDirectory), finished, places.title_at(disk, "/b", COOKIE, "/other"))


def _comes_back(data: bytes, decode: Callable[[bytes, str], Any]) -> None:
    found = attempt(DamagedFile, decode, data, "path")
    if found is not REFUSED:
        same(found.encode(), data, "a cookie")


def some_formats() -> Iterator[bytes]:
    """Format files without storage directories, and with them."""
    yield _body(encode_record("format", 1, {"journal": "present", "boots": "3", "logs": "1000"}))
    yield _body(encode_record("format", 2, {"boots": "3", "journal-1a2b": "/disk1/journal", "ledgers-own": "ledgers"}))


@TARGET.decoder(
    "bookie/directories/layout.py:_decode_format", "bookie/directories/layout.py:read_format",
    "bookie/directories/storage_directories.py:listed_directories", "bookie/directories/storage_directories.py:_listed",
    "bookie/directories/layout.py:DataDirectory.boots", seeds=some_formats, )  # fmt: skip
def format_file(data: bytes) -> None:
    """The format file: properties of a data directory, and locations of its parts."""
    for given in _each_way(data):
        values = attempt(DamagedFile, directories._decode_format, given, "path")
        if values is not REFUSED:
            int(values.get(directories.BOOTS, "0"))
            int(values.get(directories.LOGS, "0"))
            found = places.listed_directories(values, "/b")
            places.without_directories(values)
            places.values_of(found, "/b")


def some_markers() -> Iterator[bytes]:
    """Limbo markers."""
    yield _body(encode_record("limbo", 1, {"events": "1", "below": "700"}))
    yield _body(encode_record("limbo", 1, {"events": "1", "below": "700", "enrolled": "no", "index": "3"}))


@TARGET.decoder("bookie/directories/limbo.py:load_limbo", seeds=some_markers)
def limbo_marker(data: bytes) -> None:
    """The limbo marker: how often a bookie may have lost something."""
    for given in _each_way(data):
        _values(given, limbo.KIND, limbo.VERSION)
        found = attempt(DamagedFile, finished, load_limbo(OneFile("limbo", given), "limbo"))
        if isinstance(found, Limbo):
            found.again(5)
            found.covers(7, 0)
