"""The context of a gateway: stores, limits and counters that its services share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tallybook.client.client import Client
from tallybook.core.settings import GatewaySettings
from tallybook.runtime.calls import CallHandler
from tallybook.runtime.clock import Clock
from tallybook.runtime.tasks import Tasks

from .auth import Authorizer
from .interceptor import AuthorizedHandler, intercepted
from .limits import GatewayLimits
from .metrics import GatewayCounters


@dataclass(frozen=True, slots=True)
class GatewayContext:
    """Stores, limits and counters of one gateway: its services share them, so that limits apply to all together."""

    client: Client
    """Accesses the cluster. Its settings are ``settings.client``."""
    settings: GatewaySettings
    limits: GatewayLimits
    counts: GatewayCounters
    clock: Clock
    tasks: Tasks
    """Background work that outlives a call; closed only after ``stop`` of the services."""
    authorizer: Authorizer

    def served(self, service: str, handlers: Mapping[str, AuthorizedHandler]) -> Mapping[str, CallHandler]:
        """The handlers of the methods of a service, for the network."""
        shared = (self.counts, self.clock, self.authorizer, self.limits, self.client.world.tracer)
        return {name: intercepted(f"{service}/{name}", handler, *shared) for name, handler in handlers.items()}
