"""How a server runs that is a client of its cluster, as gateway and console are: from the start to the clean stop."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import TypeVar

from tallybook.client.client import Client
from tallybook.core.config import ClientSettings, ConsoleSettings, GatewaySettings
from tallybook.core.errors import TallybookError
from tallybook.runtime.process import RealProcess
from tallybook.runtime.tuning import settle_memory

from .cluster import cluster
from .exits import RefusedToStart
from .output import Record, print_json
from .running import told_to_stop

A = TypeVar("A")


async def serve_cluster(
    settings: GatewaySettings | ConsoleSettings,
    serving: Callable[[Client], AbstractAsyncContextManager[A]],
    where: Callable[[A], Record],
    *,
    parent_pipe: int | None,
    as_json: bool,
) -> None:
    """Serve until this process is told to stop; say so, in one line, once it does.

    Args:
        serving: serves for as long as it is entered, with a client of the cluster.
        where: what that line says with ``--json``, by what ``serving`` gives; without, ``ready`` of it.

    Raises:
        RefusedToStart: it could not.
    """
    stop = told_to_stop(RealProcess(), parent_pipe)
    own = own_client(settings)
    ready = False
    try:
        async with cluster(settings.metadata, own) as client, serving(client) as addresses:
            ready = True
            settle_memory()
            told = where(addresses)
            if as_json:
                print_json({**told, "pid": os.getpid()})
            else:
                print(f"ready {told['ready']}", flush=True)
            await stop.wait()
    except TallybookError as error:
        if ready:
            raise
        raise RefusedToStart(error) from error


def own_client(settings: GatewaySettings | ConsoleSettings) -> ClientSettings:
    """It goes by the same certificate as what it serves, and what a gateway does is part of the same traces."""
    own = settings.client
    update = {"security": own.security or settings.security}
    if isinstance(settings, GatewaySettings):
        update["traces"] = own.traces or settings.traces
    return own.model_copy(update=update)
