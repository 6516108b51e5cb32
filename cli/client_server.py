"""Runs a server that is a client of the cluster (gateway, console), from the start to the clean stop."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import TypeVar

from tallybook.client.client import Client
from tallybook.core.errors import TallybookError
from tallybook.core.settings import ClientSettings, ConsoleSettings, GatewaySettings
from tallybook.runtime.process import RealProcess
from tallybook.runtime.tuning import settle_memory

from .cluster_client import cluster
from .exits import RefusedToStart
from .output import ResultFields, print_json
from .running import stop_event

A = TypeVar("A")


async def serve_cluster(
    settings: GatewaySettings | ConsoleSettings,
    serving: Callable[[Client], AbstractAsyncContextManager[A]],
    where: Callable[[A], ResultFields],
    *,
    parent_pipe: int | None,
    as_json: bool,
) -> None:
    """Serve until a stop signal; print one line when the server is ready.

    Args:
        serving: the server as a context manager, which is given a client of the cluster.
        where: makes the fields of the ready line from what ``serving`` yields; without ``--json`` only ``ready``.

    Raises:
        RefusedToStart: the server could not start.
    """
    stop = stop_event(RealProcess(), parent_pipe)
    own = client_settings_of(settings)
    ready = False
    try:
        async with cluster(settings.metadata, own) as client, serving(client) as addresses:
            ready = True
            settle_memory()
            fields = where(addresses)
            if as_json:
                print_json({**fields, "pid": os.getpid()})
            else:
                print(f"ready {fields['ready']}", flush=True)
            await stop.wait()
    except TallybookError as error:
        if ready:
            raise
        raise RefusedToStart(error) from error


def client_settings_of(settings: GatewaySettings | ConsoleSettings) -> ClientSettings:
    """The settings of the server's client: by default it has the server's certificate, and a gateway's traces."""
    own = settings.client
    update = {"security": own.security or settings.security}
    if isinstance(settings, GatewaySettings):
        update["traces"] = own.traces or settings.traces
    return own.model_copy(update=update)
