"""Endpoints on bookies: list, details, and switching the wanted mode."""

from __future__ import annotations

from tallybook.client.client import Client
from tallybook.core.errors import Busy, InvalidArgument, NoSuchBookie
from tallybook.metadata.records.bookie_modes import RequestedMode
from tallybook.repair.status.drain import check_can_end, switch_mode
from tallybook.runtime.http.endpoints import EndpointRequest

from .cluster_view import ClusterView

_SWITCHES = {
    "read-only": (RequestedMode.READ_ONLY, True),
    "writable": (RequestedMode.READ_ONLY, False),
    "drain": (RequestedMode.DRAINING, True),
    "undrain": (RequestedMode.DRAINING, False),
}


class ConsoleBookieEndpoints:
    """The endpoints below ``/api/v1/bookies``."""

    def __init__(self, client: Client, view: ClusterView) -> None:
        self._client = client
        self._view = view

    async def list(self, request: EndpointRequest) -> object:
        """All bookies: the registered ones, and those that ledger metadata names."""
        overview = await self._view.overview()
        return {key: overview[key] for key in ("bookies", "at_ms", "age_ms", "why")}

    async def details(self, request: EndpointRequest) -> object:
        """One bookie, with the ledgers that name it and whether it may be switched off."""
        bookie_id = request.path["bookie"]
        overview = await self._view.overview(wait_for_census=True)
        naming = self._view.naming(bookie_id)
        bookies, counted = overview["bookies"], overview["ledgers"] is not None
        found = next((each for each in bookies or () if each["bookie_id"] == bookie_id), None)  # type: ignore[attr-defined]
        if found is None and not counted:
            # An unregistered bookie is known only from ledger metadata.
            raise Busy("the bookies of this cluster are not known yet: the first poll is running", retry_after_ms=1_000)
        if found is None:
            raise NoSuchBookie(f"this cluster has no bookie {bookie_id!r}")
        return {**found, **naming, **{key: overview[key] for key in ("at_ms", "age_ms", "why")}}

    async def switch(self, request: EndpointRequest) -> object:
        """Set or clear the wanted mode of a bookie. A drain that cannot complete is refused unless forced."""
        known = _SWITCHES.get(request.path["mode"])
        if known is None:
            raise InvalidArgument(f"unknown mode; a bookie can be switched to: {', '.join(_SWITCHES)}")
        world, (mode, on) = self._client.world, known
        force = request.body.get("force", False)
        if not isinstance(force, bool):
            raise InvalidArgument("force must be true or false")
        if mode is RequestedMode.DRAINING and on and not force:
            await check_can_end(world.store, world.membership, request.path["bookie"], force_option='"force": true')
        rng, bookie_id = world.rng.fork("mode"), request.path["bookie"]
        wanted = await switch_mode(world.store, world.membership, world.clock, rng, bookie_id, mode, on=on)
        return {"bookie_id": bookie_id, "wanted": wanted.value}
