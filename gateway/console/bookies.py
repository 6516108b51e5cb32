"""Bookies: which there are, how each is, and what is wanted of them."""

from __future__ import annotations

from tallybook.client.client import Client
from tallybook.core.errors import InvalidArgument, NoSuchBookie
from tallybook.metadata.bookie_modes import WantedMode
from tallybook.repair.drain import switch_mode, who_names
from tallybook.runtime.http_api import Asked

from .cluster_view import ClusterView

_SWITCHES = {
    "read-only": (WantedMode.READ_ONLY, True),
    "writable": (WantedMode.READ_ONLY, False),
    "drain": (WantedMode.DRAINING, True),
    "undrain": (WantedMode.DRAINING, False),
}


class Bookies:
    """What the endpoints below ``/api/v1/bookies`` do."""

    def __init__(self, client: Client, view: ClusterView) -> None:
        self._client = client
        self._view = view

    async def list(self, asked: Asked) -> object:
        """All of them: those that are there, and those that ledgers name."""
        return {"bookies": (await self._view.look()).told["bookies"]}

    async def one(self, asked: Asked) -> object:
        """One of them, and how far it is from being empty."""
        bookie_id, told = asked.path["bookie"], (await self._view.look()).told
        bookies = told["bookies"]
        found = next((each for each in bookies if each["bookie_id"] == bookie_id), None)  # type: ignore[attr-defined]
        if found is None:
            raise NoSuchBookie(f"no bookie of this cluster is called {bookie_id!r}")
        world = self._client.world
        naming = await who_names(world.store, world.membership, bookie_id)
        return {
            **found,
            "named_by": naming.ledgers,
            "growing": naming.growing,
            "still_chosen": naming.chosen,
            "may_be_switched_off": naming.may_go,
        }

    async def switch(self, asked: Asked) -> object:
        """Want something of one, or no longer."""
        known = _SWITCHES.get(asked.path["mode"])
        if known is None:
            raise InvalidArgument(f"a bookie can be told: {', '.join(_SWITCHES)}")
        world, (mode, on) = self._client.world, known
        rng, bookie_id = world.rng.fork("mode"), asked.path["bookie"]
        wanted = await switch_mode(world.store, world.membership, world.clock, rng, bookie_id, mode, on=on)
        return {"bookie_id": bookie_id, "wanted": wanted.value}
