"""Bookies: which there are, how each is, and what is wanted of them."""

from __future__ import annotations

from tallybook.client.client import Client
from tallybook.core.errors import Busy, InvalidArgument, NoSuchBookie
from tallybook.metadata.bookie_modes import WantedMode
from tallybook.repair.drain import check_can_end, switch_mode
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
        told = await self._view.overview()
        return {key: told[key] for key in ("bookies", "at_ms", "age_ms", "why")}

    async def one(self, asked: Asked) -> object:
        """One of them, and how far it is from being empty."""
        bookie_id = asked.path["bookie"]
        told = await self._view.overview(counted_too=True)
        naming = self._view.naming(bookie_id)
        bookies, counted = told["bookies"], told["ledgers"] is not None
        found = next((each for each in bookies or () if each["bookie_id"] == bookie_id), None)  # type: ignore[attr-defined]
        if found is None and not counted:
            # One that is away is known by the ledgers that name it.
            raise Busy("which bookies there are is not known yet", retry_after_ms=1_000)
        if found is None:
            raise NoSuchBookie(f"no bookie of this cluster is called {bookie_id!r}")
        return {**found, **naming, **{key: told[key] for key in ("at_ms", "age_ms", "why")}}

    async def switch(self, asked: Asked) -> object:
        """Want something of one, or no longer. A drain that cannot end is refused, unless it is forced."""
        known = _SWITCHES.get(asked.path["mode"])
        if known is None:
            raise InvalidArgument(f"a bookie can be told: {', '.join(_SWITCHES)}")
        world, (mode, on) = self._client.world, known
        force = asked.body.get("force", False)
        if not isinstance(force, bool):
            raise InvalidArgument("force is not true or false")
        if mode is WantedMode.DRAINING and on and not force:
            await check_can_end(world.store, world.membership, asked.path["bookie"])
        rng, bookie_id = world.rng.fork("mode"), asked.path["bookie"]
        wanted = await switch_mode(world.store, world.membership, world.clock, rng, bookie_id, mode, on=on)
        return {"bookie_id": bookie_id, "wanted": wanted.value}
