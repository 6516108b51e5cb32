"""Table of registered bookies, and which of its rows are alive.

A registration is alive if its last heartbeat is at most ``expiry_ms`` old by the host's boot clock and was made since
the host booted. Dead rows stay until the next registration deletes them. All functions run on the database's thread.
"""

from __future__ import annotations

import sqlite3
from typing import Final, NamedTuple

from tallybook.runtime.boot_clock import BootClock

from ..codec import StoredRegistration, decode_bookie, encode_bookie

# Each has the same condition: boot_id = ? AND beat_ms BETWEEN ? AND ?, with the parameters Moment.alive.
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
    """The current time for heartbeats."""

    boot_id: str
    now_ms: int
    expiry_ms: int

    @property
    def alive(self) -> tuple[str, int, int]:
        """SQL parameters of the condition. A heartbeat from the future is of an earlier boot with unknown id."""
        return (self.boot_id, self.now_ms - self.expiry_ms, self.now_ms + self.expiry_ms)


class Row(NamedTuple):
    """One live registration. ``revision`` grows with every change of the registered information."""

    bookie_id: str
    session: str
    revision: int
    value: bytes
    beat_ms: int

    def registered(self, name: str) -> StoredRegistration:
        """The decoded registration."""
        return decode_bookie(self.value, f"{name}, bookie {self.bookie_id!r}")


def moment(clock: BootClock, expiry_ms: int) -> Moment:
    """The current time."""
    return Moment(clock.boot_id, clock.now_ms(), expiry_ms)


def live(connection: sqlite3.Connection, at: Moment) -> list[Row]:
    """Live registrations, ordered by bookie id."""
    return [Row(*row) for row in connection.execute(_LIVE, at.alive)]


def insert(connection: sqlite3.Connection, registered: StoredRegistration, at: Moment) -> None:
    """Insert or replace a registration, and delete dead ones."""
    connection.execute(_SWEEP, at.alive)
    row = (registered.info.bookie_id, registered.session, encode_bookie(registered), at.boot_id, at.now_ms)
    connection.execute(_INSERT, row)


def beat(connection: sqlite3.Connection, bookie_id: str, session: str, at: Moment) -> bool:
    """Renew a registration's heartbeat. False if it is dead: no client lists it any more, and it stays dead."""
    return connection.execute(_BEAT, (at.now_ms, bookie_id, session, *at.alive)).rowcount == 1


def change(connection: sqlite3.Connection, registered: StoredRegistration, at: Moment) -> bool:
    """Change a live registration. False if it is dead."""
    parameters = (encode_bookie(registered), registered.info.bookie_id, registered.session, *at.alive)
    return connection.execute(_CHANGE, parameters).rowcount == 1


def remove(connection: sqlite3.Connection, bookie_id: str, session: str) -> None:
    """Delete a registration, if its session is still the current one."""
    connection.execute("DELETE FROM bookies WHERE bookie_id = ? AND session = ?", (bookie_id, session))
