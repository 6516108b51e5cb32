"""The offloader and the repair of ``tallybook up``, which run in its own process.

Their ports for health and metrics are bound before they start, because the console, which starts earlier, needs the
addresses. The cluster works without them: if one fails, a warning is printed, and the other processes go on. Only an
archive that the user names is checked before anything starts.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Generic, NamedTuple, TypeVar
from urllib.parse import quote

from tallybook.client.client import Client
from tallybook.core.errors import TallybookError
from tallybook.core.settings import ClientSettings, OffloadSettings, RepairSettings
from tallybook.runtime.clock import RealClock
from tallybook.runtime.extras import NeedsExtra
from tallybook.runtime.listening import Listening, address_of, bind
from tallybook.runtime.rng import SystemRng
from tallybook.runtime.settings import load_settings
from tallybook.runtime.tasks import Tasks, raise_defect

from ..output import complain
from .launcher import LocalCluster

S = TypeVar("S", OffloadSettings, RepairSettings)

_NOT_ARCHIVED = "closed ledgers are not archived"
_NOT_REPAIRED = "lost copies are not restored"


class _Prepared(NamedTuple, Generic[S]):
    """The settings and the bound port of an offloader or a repair."""

    settings: S
    listening: Listening


class LocalMaintenance:
    """The offloader and the repair of a local cluster. The caller has to close it."""

    def __init__(self, cluster: LocalCluster, archive: str | None, *, offload: bool, repair: bool) -> None:
        self._cluster = cluster
        self._archive = archive
        self._offloader = _prepare(OffloadSettings, _NOT_ARCHIVED) if offload else None
        self._repair = _prepare(RepairSettings, _NOT_REPAIRED) if repair else None

    @property
    def addresses(self) -> list[str]:
        """Their addresses of health and metrics."""
        return [address_of(each.listening) for each in (self._offloader, self._repair) if each is not None]

    def close(self) -> None:
        """Close their sockets."""
        for each in (self._offloader, self._repair):
            if each is not None:
                each.listening.close()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run both until the block is left."""
        tasks = Tasks("up", raise_defect("tallybook up"))
        if self._offloader is not None:
            tasks.spawn(self._archiving(*self._offloader), name="offload", essential=False)
        if self._repair is not None:
            tasks.spawn(self._repairing(*self._repair), name="repair", essential=False)
        try:
            yield
        finally:
            await tasks.close()

    async def _repairing(self, settings: RepairSettings, listening: Listening) -> None:
        # Imported here because it takes long to load; by now the cluster is ready. Below likewise.
        from tallybook.repair.service import run_repair  # noqa: PLC0415

        try:
            await run_repair(self._cluster.metadata, settings, listening)
        except (TallybookError, OSError) as error:
            complain(f"{_NOT_REPAIRED}: {error}")
        finally:
            listening.close()

    async def _archiving(self, settings: OffloadSettings, listening: Listening) -> None:
        try:
            with NeedsExtra("an archive"):
                from tallybook.archive.url_record import read_location  # noqa: PLC0415
                from tallybook.offload.service import offloading  # noqa: PLC0415

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


async def check_archive(url: str) -> None:
    """Open an archive as the offloader will, and close it, so that a wrong URL is refused before the cluster starts.

    Raises:
        InvalidConfig: the URL or the environment is invalid, or an extra is not installed.
        ArchiveDenied: the directory does not exist, or there are no credentials.
        ArchiveUnavailable: the source of credentials does not answer.
    """
    with NeedsExtra("an archive"):
        import tallybook.offload.service  # noqa: F401, PLC0415 (loads the libraries of the offloader)
        from tallybook.archive.objects.open import open_store  # noqa: PLC0415
    store = await open_store(url, RealClock(), SystemRng())
    await store.close()


def _prepare(model: type[S], warning: str) -> _Prepared[S] | None:
    try:
        settings = load_settings(model)
        return _Prepared(settings, bind(settings.http_listen))
    except TallybookError as error:
        complain(f"{warning}: {error}")
        return None
