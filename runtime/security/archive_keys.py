"""The keys of a sealed archive: the file that the option ``archive_keys`` names.

    {"format": 1, "current": "2026-11-24-5f0c1a", "plain": "read", "keys": {"2026-11-24-5f0c1a": "<base64>"}}

``current`` is the key that new objects are sealed with; the others open what was sealed before. ``plain`` says whether
objects that are not sealed are believed: ``read``, while an archive has some, or ``refuse``.

The file may be replaced at any time. It is looked at again every few seconds while it is used, and at once where an
object names a key that it did not have. What cannot be understood is not taken: what was in force stays, and the log
says why.
"""

from __future__ import annotations

import base64
import json
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Protocol

from tallybook.core.errors import InvalidArgument, InvalidConfig, NewerFormat

from ..clock import Clock
from ..json_once import loads_once
from ..logging import logger
from ..tasks import Workers
from .files import read_file, seen
from .replacing import SECRET_MODE, changing, replace_file
from .security import RELOAD_SECONDS

FORMAT: Final = 1
KEY_BYTES: Final = 32
MAX_KEY_ID: Final = 32
MAX_KEYS: Final = 1_000
PLAIN: Final = ("read", "refuse")

_ID: Final = re.compile(rf"[A-Za-z0-9._-]{{1,{MAX_KEY_ID}}}")

_log = logger("security")


@dataclass(frozen=True, slots=True)
class ArchiveKeys:
    """What the file says.

    Args:
        reads_plain: whether objects that are not sealed are believed.
    """

    current: str
    keys: Mapping[str, bytes] = field(repr=False)
    reads_plain: bool = True


class ArchiveKeySource(Protocol):
    """Where a sealed archive has its keys from."""

    async def now(self, *, wanted: str = "") -> ArchiveKeys:
        """The keys that are in force; looked for anew if ``wanted`` is not one of them."""


class ArchiveKeyFile:
    """An ``ArchiveKeySource``: a file, read again when it changes.

    Args:
        workers: where the file is read.

    Raises:
        InvalidConfig: it is not there, is open to every user of this machine, or says what cannot be.
        NewerFormat: a newer Tallybook has written it.
    """

    def __init__(self, path: str, clock: Clock, workers: Workers) -> None:
        self._path = Path(path)
        self._clock = clock
        self._workers = workers
        self._signature = seen(self._path)
        self._keys = read_keys(self._path)
        self._looked_at = clock.monotonic()
        self._told = ""

    async def now(self, *, wanted: str = "") -> ArchiveKeys:
        """The keys that are in force."""
        old = self._clock.monotonic() - self._looked_at >= RELOAD_SECONDS
        if old or (wanted and wanted not in self._keys.keys):
            self._looked_at = self._clock.monotonic()
            await self._workers.run(self.refresh)
        return self._keys

    def refresh(self) -> None:
        """Take over what has changed, if it can be understood. Reads a file: not for an event loop."""
        try:
            signature = seen(self._path)
            if signature == self._signature:
                return
            keys = read_keys(self._path)
        except (InvalidConfig, NewerFormat) as error:
            if error.message != self._told:
                self._told = error.message
                _log.error("changed keys of the archive are not taken", path=str(self._path), error=error.message)
            return
        self._signature, self._keys, self._told = signature, keys, ""
        _log.info("keys of the archive taken", path=str(self._path), current=keys.current)


def read_keys(path: Path) -> ArchiveKeys:
    """The keys in a file.

    Raises:
        InvalidConfig: it is not there, is open to every user of this machine, or says what cannot be.
        NewerFormat: a newer Tallybook has written it.
    """
    content = read_file(path, secret=True)
    if content is None:
        raise InvalidConfig(f"there is no file {path} with keys of the archive")
    return parse_archive_keys(content, str(path))


def parse_archive_keys(content: bytes, path: str) -> ArchiveKeys:
    """Understand a file of keys. No message repeats what may be a key.

    Raises:
        InvalidConfig: it is none; the message names the file and what is wrong.
        NewerFormat: a newer Tallybook has written it.
    """
    try:
        found = loads_once(content)
    except (ValueError, RecursionError):
        raise InvalidConfig(f"{path} is not a JSON file, or has a field twice") from None
    if not isinstance(found, dict) or type(found.get("format")) is not int or found["format"] < 1:
        raise InvalidConfig(f"{path} holds no keys of an archive: it has no format")
    if found["format"] > FORMAT:
        raise NewerFormat.of(path, found["format"], FORMAT)
    if set(found) - {"format", "current", "plain", "keys"}:
        raise InvalidConfig(f"{path} may hold format, current, plain and keys, and nothing else")
    current, plain, keys = found.get("current"), found.get("plain", "read"), found.get("keys")
    if plain not in PLAIN:
        raise InvalidConfig(f"{path}: plain is one of {', '.join(PLAIN)}")
    if not isinstance(keys, dict) or not 1 <= len(keys) <= MAX_KEYS:
        raise InvalidConfig(f"{path}: keys must hold 1 .. {MAX_KEYS} keys by their names")
    if not isinstance(current, str) or current not in keys:
        raise InvalidConfig(f"{path}: current does not name one of the keys")
    return ArchiveKeys(current, {name: _key(name, text, path) for name, text in keys.items()}, plain == "read")


def _key(name: str, text: object, path: str) -> bytes:
    if not _ID.fullmatch(name):
        raise InvalidConfig(f"{path}: the name of a key has up to {MAX_KEY_ID} letters, digits and . _ -")
    try:
        key = base64.b64decode(text, validate=True) if isinstance(text, str) else b""
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        raise InvalidConfig(f"{path}: key {name} is not {KEY_BYTES} bytes in base64")
    return key


def add_key(path: Path) -> ArchiveKeys:
    """Make a new key and the current one, in a file that is made if it is not there.

    Raises:
        InvalidConfig, NewerFormat: what is there is not a file of keys, or somebody else keeps changing it.
        OSError: it cannot be written.
    """
    name = f"{datetime.now(UTC):%Y-%m-%d}-{secrets.token_hex(3)}"
    with changing(path) as place:
        if read_file(place, secret=True) is None:
            made = ArchiveKeys(name, {name: secrets.token_bytes(KEY_BYTES)})
        else:
            before = read_keys(place)
            if len(before.keys) >= MAX_KEYS:
                raise InvalidConfig(f"{path} has {MAX_KEYS} keys: drop some first")
            made = replace(before, current=name, keys={**before.keys, name: secrets.token_bytes(KEY_BYTES)})
        _write(place, made)
    return made


def drop_key(path: Path, name: str) -> ArchiveKeys:
    """Take a key away. What is sealed with it can be read by nobody any more.

    Raises:
        InvalidArgument: there is no such key, or it is the current one.
        InvalidConfig, NewerFormat: there is no file of keys, or somebody else keeps changing it.
        OSError: it cannot be written.
    """
    with changing(path) as place:
        before = read_keys(place)
        others = sorted(before.keys.keys() - {before.current})
        if name not in others:
            raise InvalidArgument(f"{name} is not one of the keys that may go: {', '.join(others) or 'there are none'}")
        made = replace(before, keys={each: key for each, key in before.keys.items() if each != name})
        _write(place, made)
    return made


def believe_plain(path: Path, *, reads_plain: bool) -> ArchiveKeys:
    """Say whether objects that are not sealed are believed.

    Raises:
        InvalidConfig, NewerFormat: there is no file of keys, or somebody else keeps changing it.
        OSError: it cannot be written.
    """
    with changing(path) as place:
        made = replace(read_keys(place), reads_plain=reads_plain)
        _write(place, made)
    return made


def random_bytes(size: int) -> bytes:
    """Bytes that nobody can guess: for keys, and for what must never come twice. Of no seed, also in a simulation."""
    return secrets.token_bytes(size)


def _write(path: Path, keys: ArchiveKeys) -> None:
    told = {name: base64.b64encode(key).decode() for name, key in keys.keys.items()}
    plain = PLAIN[0] if keys.reads_plain else PLAIN[1]
    record = {"format": FORMAT, "current": keys.current, "plain": plain, "keys": told}
    replace_file(path, json.dumps(record, indent=2).encode() + b"\n", mode=SECRET_MODE)
