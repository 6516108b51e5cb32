"""Registers the bookie in the cluster membership, and keeps it registered.

A registration can expire: the process was paused, or the metadata store was unreachable. The bookie then keeps serving
and registers again until that succeeds. If another process is registered under its id by then (another directory, or a
later incarnation of this one), it must stop, because clients connect to that process.

The registration follows the mode at once, but free disk space only roughly: every change is a write to the metadata
store and wakes all watchers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Final

from tallybook.core.coverage import sometimes
from tallybook.core.errors import MetadataConflict, PeerError, StorageError
from tallybook.metadata.store import BookieInfo, BookieMode, Membership, Registration
from tallybook.runtime.clock import Clock
from tallybook.runtime.concurrency.backoff import jittered
from tallybook.runtime.logging import logger
from tallybook.runtime.rng import Rng

_log = logger("bookie.enrolment")

RETRY_SECONDS: Final = 0.5
"""Pause between attempts to register again."""

POLL_SECONDS: Final = 1.0
"""How often the mode is compared with the registered one."""

SPACE_SECONDS: Final = 60.0
"""How often free disk space is measured."""

SPACE_CHANGE: Final = 0.1
"""Part by which free disk space must change before it is registered again."""

LEAVE_SECONDS: Final = 3.0
"""How long deregistration may take; the entry expires by itself afterwards."""


class BookieRegistration:
    """The registration of one bookie.

    Args:
        info: the data to register; mode and free bytes follow the next two.
        mode: the current mode.
        measure_free_bytes: measures the disk; may raise a ``StorageError``.
        rng: jitter of pauses: after an outage of the store, all bookies register again.
    """

    def __init__(
        self,
        membership: Membership,
        info: BookieInfo,
        mode: Callable[[], BookieMode],
        measure_free_bytes: Callable[[], Awaitable[int]],
        clock: Clock,
        rng: Rng,
    ) -> None:
        self._membership = membership
        self._info = info
        self._mode = mode
        self._measure_free_bytes = measure_free_bytes
        self._clock = clock
        self._rng = rng
        self._free_bytes = 0
        self._measure_at = clock.monotonic()
        self._registration: Registration | None = None
        self._is_in_doubt = False
        """Whether the registered data may differ from ``_info``."""

    @property
    def listed(self) -> bool:
        """Whether the bookie is registered, as far as it knows."""
        return self._registration is not None

    async def enter(self) -> None:
        """Register for the first time.

        Raises:
            MetadataConflict: another live process is registered under this bookie id.
            MetadataUnavailable, MetadataOutcomeUnknown: the store does not respond.
        """
        self._registration = await self._register()

    async def keep(self) -> None:
        """Stay registered until cancelled.

        Raises:
            MetadataConflict: another process has registered under this bookie id.
        """
        while True:
            if self._registration is None:
                await self._register_again()
            else:
                await self._until_lost_or_changed(self._registration)

    async def leave(self) -> None:
        """Deregister; if the store does not respond in time, the entry expires by itself."""
        registration, self._registration = self._registration, None
        if registration is None:
            return
        try:
            async with asyncio.timeout(LEAVE_SECONDS):
                await registration.close()
        except (TimeoutError, PeerError) as error:
            _log.warning("not deregistered; the entry will expire", bookie_id=self._info.bookie_id, error=repr(error))

    async def _until_lost_or_changed(self, registration: Registration) -> None:
        """Watch one registration for a while; forget it once it is lost."""
        try:
            async with asyncio.timeout(POLL_SECONDS):
                await registration.lost()
        except TimeoutError:
            present = await self._present()
            if present != self._info or self._is_in_doubt:
                await self._update(registration, present)
            return
        sometimes("registration: lost")
        _log.warning("registration lost", bookie_id=self._info.bookie_id)
        self._registration = None

    async def _present(self) -> BookieInfo:
        """The data to register now."""
        if self._clock.monotonic() >= self._measure_at:
            self._measure_at = self._clock.monotonic() + SPACE_SECONDS
            try:
                self._free_bytes = await self._measure_free_bytes()
            except StorageError as error:
                # Free space only guides placement, so this is no reason to stop.
                _log.warning("free disk space not measured", bookie_id=self._info.bookie_id, error=error.message)
        registered = self._info.free_bytes
        changed = abs(self._free_bytes - registered) > SPACE_CHANGE * registered
        return replace(self._info, mode=self._mode(), free_bytes=self._free_bytes if changed else registered)

    async def _update(self, registration: Registration, info: BookieInfo) -> None:
        try:
            await registration.update(info)
        except PeerError as error:
            # The next poll tries again, or finds the registration lost.
            _log.warning("change not registered", bookie_id=info.bookie_id, mode=info.mode.value, error=error.message)
            self._is_in_doubt = True
            return
        self._is_in_doubt = False
        if info.mode is not self._info.mode:
            _log.info("mode registered", bookie_id=info.bookie_id, mode=info.mode.value)
        self._info = info

    async def _register_again(self) -> None:
        try:
            self._registration = await self._register()
        except MetadataConflict:
            sometimes("registration: an entry is in the way")
            if not await self._is_ourselves():
                raise
        except PeerError as error:
            _log.warning("not registered again yet", bookie_id=self._info.bookie_id, error=error.message)
        else:
            sometimes("registration: registered again")
            _log.info("registered again", bookie_id=self._info.bookie_id)
            return
        await self._clock.sleep(jittered(self._rng, RETRY_SECONDS))

    async def _register(self) -> Registration:
        self._info = await self._present()
        registration = await self._membership.register(self._info)
        self._is_in_doubt = False
        return registration

    async def _is_ourselves(self) -> bool:
        """Whether the conflicting entry is an earlier one of this incarnation of the bookie, which will expire.

        An attempt whose outcome was unknown may have left one. The lock on the data directory excludes another process
        with this incarnation.
        """
        try:
            listed = (await self._membership.bookies()).get(self._info.bookie_id)
        except PeerError:
            return True
        return listed is None or listed.incarnation == self._info.incarnation
