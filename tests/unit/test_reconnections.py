"""Reconnecting to a known bookie: without the metadata store if possible, and never for ever."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tallybook.client.connection import pool as connections
from tallybook.client.connection.pool import BookieConnections
from tallybook.core.answers import Incarnation
from tallybook.core.errors import BookieUnavailable, InvalidConfig, MetadataUnavailable, StaleIncarnation
from tallybook.core.settings import ClientSettings
from tallybook.metadata.store import BookieInfo
from tallybook.runtime.tasks import Tasks
from tallybook.sim.deterministic import World

from ..simulated import Parts, on_stage

SETTINGS = ClientSettings(connect_timeout_ms=3000, reconnect_ms=500)


class Connection:
    """A stand-in for an open connection."""

    broken = False

    def __init__(self, address: str) -> None:
        self.address = address

    async def close(self) -> None:
        """Nothing to end."""


class Street:
    """Servers by address, and a membership that can be unavailable, or slow."""

    def __init__(self, world: World) -> None:
        self.clock = world.clock
        self.tasks = Tasks("test", lambda name, error: pytest.fail(f"{name}: {error!r}"))
        self.living: dict[str, Incarnation] = {}
        self.silent: set[str] = set()
        self.strangers: set[str] = set()
        self.registered: dict[str, BookieInfo] = {}
        self.away = False
        self.slow = False
        self.asked = 0
        self.pool = BookieConnections(object(), self, SETTINGS, world.clock, self.tasks)  # type: ignore[arg-type]

    def move_in(self, address: str, boot: int) -> None:
        """Let this life of the bookie answer at ``address``, and register there."""
        self.living[address] = Incarnation("directory", boot)
        self.registered["b1"] = BookieInfo("b1", address, self.living[address])

    async def bookies(self) -> dict[str, BookieInfo]:
        self.asked += 1
        if self.slow:
            await self.clock.sleep(100)
        if self.away:
            raise MetadataUnavailable("away")
        return dict(self.registered)

    async def open(self, address: str, expected: Incarnation) -> Connection:
        if address in self.silent:
            await self.clock.sleep(100)
        if address in self.strangers:
            raise InvalidConfig("a bookie of another cluster")
        if address not in self.living:
            raise BookieUnavailable("nobody there")
        if self.living[address] != expected:
            raise StaleIncarnation("another life")
        return Connection(address)

    async def reached_again(self) -> Connection:
        """Lose the connection, and request another one."""
        held: Any = await self.pool.get("b1")
        held.broken = True
        return await self.pool.get("b1")  # type: ignore[return-value]


@asynccontextmanager
async def street(world: World) -> AsyncIterator[Parts]:
    made = Street(world)

    async def open_bookie(_transport: object, address: str, *, expected: Incarnation, **_: object) -> Connection:
        return await made.open(address, expected)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connections, "open_bookie", open_bookie)
        made.move_in("first:1", 1)
        yield {"town": made}
        await made.pool.close()
        await made.tasks.close()


in_a_street = on_stage(street, deadline_seconds=600)


@in_a_street
async def test_a_lost_connection_comes_back_while_the_metadata_store_is_away(town: Street) -> None:
    await town.pool.get("b1")
    town.away = town.slow = True
    assert (await town.reached_again()).address == "first:1"
    assert town.asked == 1


@in_a_street
async def test_a_bookie_that_moved_is_found_by_the_membership(town: Street) -> None:
    await town.pool.get("b1")
    del town.living["first:1"]
    town.move_in("second:1", 2)
    assert (await town.reached_again()).address == "second:1"
    town.living["second:1"] = Incarnation("directory", 3)
    town.move_in("second:1", 3)
    assert (await town.reached_again()).address == "second:1"


@pytest.mark.parametrize("left_behind", ["silent", "strangers"])
@in_a_street
async def test_a_server_at_the_old_address_does_not_hide_the_new_one(town: Street, *, left_behind: str) -> None:
    await town.pool.get("b1")
    getattr(town, left_behind).add("first:1")
    town.move_in("second:1", 2)
    assert (await town.reached_again()).address == "second:1"


@in_a_street
async def test_the_whole_attempt_ends_within_the_connect_timeout(town: Street) -> None:
    await town.pool.get("b1")
    town.silent.add("first:1")
    town.slow = True
    began = town.clock.monotonic()
    with pytest.raises(BookieUnavailable):
        await town.reached_again()
    assert town.clock.monotonic() - began <= 3.1


@in_a_street
async def test_a_metadata_store_that_hangs_is_not_the_fault_of_the_bookie(town: Street) -> None:
    town.slow = True
    began = town.clock.monotonic()
    with pytest.raises(MetadataUnavailable):
        await town.pool.get("b1")
    assert town.clock.monotonic() - began <= 3.1


@in_a_street
async def test_a_bookie_that_went_away_says_why_it_was_not_reached(town: Street) -> None:
    await town.pool.get("b1")
    del town.living["first:1"]
    with pytest.raises(BookieUnavailable, match="nobody there"):
        await town.reached_again()
    await town.clock.sleep(1)
    town.away = True
    with pytest.raises(BookieUnavailable, match="nobody there"):
        await town.pool.get("b1")
