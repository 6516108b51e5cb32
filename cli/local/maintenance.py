"""What ``tallybook up`` does itself beside its bookies: archive closed ledgers, and give back copies that are lost.

Where they show health and metrics is settled before they begin, so that the console, which starts earlier, knows whom
to look at. The cluster serves without them, too: what keeps one from its work is told, and nothing ends.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Generic, NamedTuple, TypeVar
from urllib.parse import quote

from tallybook.client.client import Client
from tallybook.core.config import ClientSettings, OffloadSettings, RepairSettings
from tallybook.core.errors import InvariantViolation, TallybookError
from tallybook.runtime.http import Listening, address_of, bind
from tallybook.runtime.settings import load_settings
from tallybook.runtime.tasks import Tasks

from .launcher import LocalCluster
from .output import complain

S = TypeVar("S", OffloadSettings, RepairSettings)

_NOT_ARCHIVED = "closed ledgers are not archived"
_NOT_GIVEN_BACK = "lost copies are not given back"


class _Set(NamedTuple, Generic[S]):
    """One that may begin."""

    settings: S
    listening: Listening


class LocalUpkeep:
    """An offloader and a repair of ``cluster``, as far as they are wanted. To be closed."""

    def __init__(self, cluster: LocalCluster, archive: str | None, *, offload: bool, repair: bool) -> None:
        self._cluster = cluster
        self._archive = archive
        self._offloader = _set(OffloadSettings, _NOT_ARCHIVED) if offload else None
        self._repair = _set(RepairSettings, _NOT_GIVEN_BACK) if repair else None

    @property
    def addresses(self) -> list[str]:
        """Where they show health and metrics."""
        return [address_of(each.listening) for each in (self._offloader, self._repair) if each is not None]

    def close(self) -> None:
        """Let go of those addresses."""
        for each in (self._offloader, self._repair):
            if each is not None:
                each.listening.close()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Work until the block is left."""
        tasks = Tasks("up", _died)
        if self._offloader is not None:
            tasks.spawn(self._archiving(*self._offloader), name="offload", essential=False)
        if self._repair is not None:
            tasks.spawn(self._giving_back(*self._repair), name="repair", essential=False)
        try:
            yield
        finally:
            await tasks.close()

    async def _giving_back(self, settings: RepairSettings, listening: Listening) -> None:
        # As below.
        from tallybook.repair.service import repairing  # noqa: PLC0415

        try:
            await repairing(self._cluster.metadata, settings, listening)
        except (TallybookError, OSError) as error:
            complain(f"{_NOT_GIVEN_BACK}: {error}")
        finally:
            listening.close()

    async def _archiving(self, settings: OffloadSettings, listening: Listening) -> None:
        # What reads and writes Parquet takes long to load; by now the cluster is ready.
        from tallybook.archive.location import read_location  # noqa: PLC0415
        from tallybook.offload.service import offloading  # noqa: PLC0415

        try:
            where = self._archive
            if where is None:
                async with Client(self._cluster.metadata, ClientSettings(security=settings.security)) as client:
                    where = await read_location(client.world.store)
            if where is None:
                directory = self._cluster.directory / "archive"
                directory.mkdir(exist_ok=True)
                where = f"file://{quote(str(directory))}"
            await offloading(self._cluster.metadata, where, settings, listening)
        except (TallybookError, OSError) as error:
            complain(f"{_NOT_ARCHIVED}: {error}")
        finally:
            listening.close()


def _set(model: type[S], otherwise: str) -> _Set[S] | None:
    try:
        settings = load_settings(model)
        return _Set(settings, bind(settings.http_listen))
    except TallybookError as error:
        complain(f"{otherwise}: {error}")
        return None


def _died(name: str, error: BaseException) -> None:
    raise InvariantViolation(f"{name} died: {error!r}") from error
