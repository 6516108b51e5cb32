"""The keys of an encrypted archive: the file that the option ``archive_keys`` names.

    {"format": 1, "current": "2026-11-24-5f0c1a", "plain": "read", "keys": {"2026-11-24-5f0c1a": "<base64>"}}

``current`` is the key that encrypts new objects; the other keys decrypt older ones. ``plain`` says whether unencrypted
objects are accepted: ``read`` (while an archive still has some) or ``refuse``.

The file may be replaced at any time. It is checked every few seconds while it is used, and at once when an object names
an unknown key. An invalid file is ignored: the keys that were loaded stay, and the reason is logged.
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
from ..logging import logger
from ..strict_json import loads_strict
from ..tasks import Workers
from .file_replacement import SECRET_MODE, replace_file, update_lock
from .files import read_file, stat_signature
from .process_security import RELOAD_SECONDS

FORMAT: Final = 1
KEY_BYTES: Final = 32
MAX_KEY_ID: Final = 32
MAX_KEYS: Final = 1_000
PLAIN: Final = ("read", "refuse")

_ID: Final = re.compile(rf"[A-Za-z0-9._-]{{1,{MAX_KEY_ID}}}")

_log = logger("security")


@dataclass(frozen=True, slots=True)
class ArchiveKeys:
    """The content of the key file.

    Args:
        reads_plain: whether unencrypted objects are accepted.
    """

    current: str
    keys: Mapping[str, bytes] = field(repr=False)
    reads_plain: bool = True


class ArchiveKeySource(Protocol):
    """Supplies the keys of an encrypted archive."""

    async def now(self, *, wanted: str = "") -> ArchiveKeys:
        """The current keys, reloaded if ``wanted`` is not one of them."""


class ArchiveKeyFile:
    """An ``ArchiveKeySource`` over a file that is reloaded when it changes.

    Args:
        workers: read the file.

    Raises:
        InvalidConfig: the file is missing, accessible to every user of this machine, or invalid.
        NewerFormat: a newer Tallybook has written it.
    """

    def __init__(self, path: str, clock: Clock, workers: Workers) -> None:
        self._path = Path(path)
        self._clock = clock
        self._workers = workers
        self._signature = stat_signature(self._path)
        self._keys = read_keys(self._path)
        self._checked_at = clock.monotonic()
        self._logged = ""

    async def now(self, *, wanted: str = "") -> ArchiveKeys:
        """The current keys."""
        old = self._clock.monotonic() - self._checked_at >= RELOAD_SECONDS
        if old or (wanted and wanted not in self._keys.keys):
            self._checked_at = self._clock.monotonic()
            await self._workers.run(self.refresh)
        return self._keys

    def refresh(self) -> None:
        """Load the file if it has changed and is valid. Blocks: do not call it on an event loop."""
        try:
            signature = stat_signature(self._path)
            if signature == self._signature:
                return
            keys = read_keys(self._path)
        except (InvalidConfig, NewerFormat) as error:
            if error.message != self._logged:
                self._logged = error.message
                _log.error("changed keys of the archive are not taken", path=str(self._path), error=error.message)
            return
        self._signature, self._keys, self._logged = signature, keys, ""
        _log.info("keys of the archive taken", path=str(self._path), current=keys.current)


def read_keys(path: Path) -> ArchiveKeys:
    """Read and parse a key file.

    Raises:
        InvalidConfig: the file is missing, accessible to every user of this machine, or invalid.
        NewerFormat: a newer Tallybook has written it.
    """
    content = read_file(path, secret=True)
    if content is None:
        raise InvalidConfig(f"archive keys: there is no file {path}")
    return parse_archive_keys(content, str(path))


def parse_archive_keys(content: bytes, path: str) -> ArchiveKeys:
    """Parse a key file. Error messages never contain key material.

    Raises:
        InvalidConfig: the content is invalid; the message names the file and the fault.
        NewerFormat: a newer Tallybook has written it.
    """
    try:
        found = loads_strict(content)
    except (ValueError, RecursionError):
        raise InvalidConfig(f"{path} is not JSON, or has a duplicate field") from None
    if not isinstance(found, dict) or type(found.get("format")) is not int or found["format"] < 1:
        raise InvalidConfig(f"{path} is not a file of archive keys: it has no format number")
    if found["format"] > FORMAT:
        raise NewerFormat.of(path, found["format"], FORMAT)
    if set(found) - {"format", "current", "plain", "keys"}:
        raise InvalidConfig(f"{path} has an unknown field; known are format, current, plain and keys")
    current, plain, keys = found.get("current"), found.get("plain", "read"), found.get("keys")
    if plain not in PLAIN:
        raise InvalidConfig(f"{path}: plain must be one of {', '.join(PLAIN)}")
    if not isinstance(keys, dict) or not 1 <= len(keys) <= MAX_KEYS:
        raise InvalidConfig(f"{path}: keys must be an object with 1 .. {MAX_KEYS} keys by their ids")
    if not isinstance(current, str) or current not in keys:
        raise InvalidConfig(f"{path}: current is not the id of one of the keys")
    return ArchiveKeys(current, {name: _key(name, text, path) for name, text in keys.items()}, plain == "read")


def _key(name: str, text: object, path: str) -> bytes:
    if not _ID.fullmatch(name):
        raise InvalidConfig(f"{path}: the id of a key must have 1 .. {MAX_KEY_ID} letters, digits and . _ -")
    try:
        key = base64.b64decode(text, validate=True) if isinstance(text, str) else b""
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        raise InvalidConfig(f"{path}: key {name} is not {KEY_BYTES} bytes in base64")
    return key


def add_key(path: Path) -> ArchiveKeys:
    """Add a new key and make it the current one; creates the file if it is missing.

    Raises:
        InvalidConfig, NewerFormat: the existing file is not a valid key file, or another process keeps it locked.
        OSError: it cannot be written.
    """
    name = f"{datetime.now(UTC):%Y-%m-%d}-{secrets.token_hex(3)}"
    with update_lock(path) as target:
        if read_file(target, secret=True) is None:
            made = ArchiveKeys(name, {name: secrets.token_bytes(KEY_BYTES)})
        else:
            before = read_keys(target)
            if len(before.keys) >= MAX_KEYS:
                raise InvalidConfig(f"{path} has {MAX_KEYS} keys: drop some first")
            made = replace(before, current=name, keys={**before.keys, name: secrets.token_bytes(KEY_BYTES)})
        _write(target, made)
    return made


def drop_key(path: Path, name: str) -> ArchiveKeys:
    """Remove a key. Objects that are encrypted with it can never be read again.

    Raises:
        InvalidArgument: there is no such key, or it is the current one.
        InvalidConfig, NewerFormat: there is no valid key file, or another process keeps it locked.
        OSError: it cannot be written.
    """
    with update_lock(path) as target:
        before = read_keys(target)
        others = sorted(before.keys.keys() - {before.current})
        if name not in others:
            raise InvalidArgument(f"key {name} cannot be removed; removable keys: {', '.join(others) or 'none'}")
        made = replace(before, keys={each: key for each, key in before.keys.items() if each != name})
        _write(target, made)
    return made


def set_plain_policy(path: Path, *, reads_plain: bool) -> ArchiveKeys:
    """Set whether unencrypted objects are accepted.

    Raises:
        InvalidConfig, NewerFormat: there is no valid key file, or another process keeps it locked.
        OSError: it cannot be written.
    """
    with update_lock(path) as target:
        made = replace(read_keys(target), reads_plain=reads_plain)
        _write(target, made)
    return made


def random_bytes(size: int) -> bytes:
    """Unpredictable bytes for keys and nonces; from the operating system also in simulation."""
    return secrets.token_bytes(size)


def _write(path: Path, keys: ArchiveKeys) -> None:
    encoded = {name: base64.b64encode(key).decode() for name, key in keys.keys.items()}
    plain = PLAIN[0] if keys.reads_plain else PLAIN[1]
    record = {"format": FORMAT, "current": keys.current, "plain": plain, "keys": encoded}
    replace_file(path, json.dumps(record, indent=2).encode() + b"\n", mode=SECRET_MODE)
