"""The table of registered bookies, and which of its rows are alive.

A registration is alive while its last heartbeat is at most ``expiry_ms`` old on the host's
boot clock, and was made since the host booted. Rows that are dead stay until the next
registration sweeps them out. All functions run on the database's thread.
"""

from __future__ import annotations

import sqlite3
from typing import Final, NamedTuple

from tallybook.runtime.boot_clock import BootClock

from ..codec import Registered, decode_bookie, encode_bookie

# Each ends with, or contains, the same condition: boot_id = ? AND beat_ms BETWEEN ? AND ?, with Moment.alive.
_LIVE: Final = """
    SELECT bookie_id, session, revision, value, beat_ms FROM bookies
    WHERE boot_id = ? AND beat_ms BETWEEN ? AND ? ORDER BY bookie_id"""
_SWEEP: Final = "DELETE FROM bookies WHERE NOT (boot_id = ? AND beat_ms BETWEEN ? AND ?)"
_INSERT: Final = "REPLACE INTO bookies VALUES (?, ?, 0, ?, ?, ?)"
_BEAT: Final = """
    UPDATE bookies SET beat_ms = ?
    WHERE bookie_id = ? AND session = ? AND boot_id = ? AND beat_ms BETWEEN ? AND ?"""
_CHANGE: Final = """
    UPDATE bookies SET value = ?, revision = revision + 1
    WHERE bookie_id = ? AND session = ? AND boot_id = ? AND beat_ms BETWEEN ? AND ?"""


class Moment(NamedTuple):
    """Now, as far as heartbeats are concerned."""

    boot_id: str
    now_ms: int
    expiry_ms: int

    @property
    def alive(self) -> tuple[str, int, int]:
        """The parameters of being alive. A beat from the future is of an earlier boot whose id is not known."""
        return (self.boot_id, self.now_ms - self.expiry_ms, self.now_ms + self.expiry_ms)


class Row(NamedTuple):
    """One live registration. ``revision`` grows whenever the bookie changes what it registered."""

    bookie_id: str
    session: str
    revision: int
    value: bytes
    beat_ms: int

    def registered(self, name: str) -> Registered:
        """What is registered."""
        return decode_bookie(self.value, f"{name}, bookie {self.bookie_id!r}")


def moment(clock: BootClock, expiry_ms: int) -> Moment:
    """Now."""
    return Moment(clock.boot_id, clock.now_ms(), expiry_ms)


def live(connection: sqlite3.Connection, at: Moment) -> list[Row]:
    """Live registrations, in order of bookie id."""
    return [Row(*row) for row in connection.execute(_LIVE, at.alive)]


def insert(connection: sqlite3.Connection, registered: Registered, at: Moment) -> None:
    """Add a registration, over whatever is under its id, and sweep out the dead."""
    connection.execute(_SWEEP, at.alive)
    row = (registered.info.bookie_id, registered.session, encode_bookie(registered), at.boot_id, at.now_ms)
    connection.execute(_INSERT, row)


def beat(connection: sqlite3.Connection, bookie_id: str, session: str, at: Moment) -> bool:
    """Keep a registration alive. False if it is not: then nobody lists it any more, and it stays dead."""
    return connection.execute(_BEAT, (at.now_ms, bookie_id, session, *at.alive)).rowcount == 1


def change(connection: sqlite3.Connection, registered: Registered, at: Moment) -> bool:
    """Change what a live registration says. False if it is not alive."""
    parameters = (encode_bookie(registered), registered.info.bookie_id, registered.session, *at.alive)
    return connection.execute(_CHANGE, parameters).rowcount == 1


def remove(connection: sqlite3.Connection, bookie_id: str, session: str) -> None:
    """Take a registration out, if it still is this one."""
    connection.execute("DELETE FROM bookies WHERE bookie_id = ? AND session = ?", (bookie_id, session))
