"""Quotas of stored bytes, as the writer of a stream enforces them."""

from __future__ import annotations

from typing import Final

from tallybook.core.errors import QuotaExceeded, TallybookError, is_defect
from tallybook.runtime.clock import Clock
from tallybook.runtime.logging import logger

from ..catalog.catalog import StreamCatalog
from ..catalog.head import Head
from ..catalog.stored_bytes import StoredBytes
from ..namespaces import Namespaces

REFRESH_SECONDS: Final = 30.0
"""How often a writer reads again how much is stored, if there is a quota. Others do it with each new segment."""

_log = logger("stream.quota")


class WriterQuota:
    """Whether a stream or its namespace has reached its quota of stored bytes.

    The quota of the stream counts its sealed segments, and all that this writer has sent to segments that are not
    sealed yet or will send: it is exact to an envelope, or, with compression, to the records not sent yet. The quota
    of the namespace counts the sealed segments of all of its streams as of the janitor's last pass, and what this
    writer was given since it read that: other writers may exceed it meanwhile.
    """

    def __init__(self, catalog: StreamCatalog, namespaces: Namespaces, clock: Clock) -> None:
        self._namespaces = namespaces
        self._sizes = StoredBytes(catalog)
        self._clock = clock
        self._read_at = float("-inf")
        self._stream_left: int | None = None
        """Bytes that the segments that are not sealed may hold; ``None``: no quota."""
        self._namespace_left: int | None = None
        self._sent_before = 0

    @property
    def limited(self) -> bool:
        """Whether there is a quota."""
        return self._stream_left is not None or self._namespace_left is not None

    @property
    def due(self) -> bool:
        """Whether there is a quota, and it is time to read again how much is stored."""
        return self.limited and self._clock.monotonic() - self._read_at >= REFRESH_SECONDS

    async def refresh(self, head: Head, sent_bytes: int) -> None:
        """Read how much is stored. If that fails, the last known sizes stay in force.

        Args:
            sent_bytes: what the writer has sent in all.
        """
        self._read_at = self._clock.monotonic()
        try:
            limit = head.policy.max_bytes
            stored = 0 if limit is None else await self._sizes.of(head)
            quota = await self._namespaces.quota(head.namespace)
        except TallybookError as error:
            if is_defect(error):
                raise
            _log.info("how much of a quota is used is not known", stream=head.name, error=error.message)
            return
        self._stream_left = None if limit is None else limit - stored
        self._namespace_left = None if quota is None else quota[0] - quota[1]
        self._sent_before = sent_bytes

    def check(self, head: Head, unsealed_bytes: int, sent_bytes: int) -> QuotaExceeded | None:
        """The error of an append now; ``None``: there is space.

        Args:
            unsealed_bytes: payload in segments that are not sealed.
            sent_bytes: as for ``refresh``.
        """
        if self._stream_left is not None and unsealed_bytes >= self._stream_left:
            return QuotaExceeded(
                f"stream {head.name} has reached its quota of {head.policy.max_bytes} bytes (max_bytes)"
            )
        if self._namespace_left is not None and sent_bytes - self._sent_before >= self._namespace_left:
            return QuotaExceeded(f"namespace {head.namespace} has reached its quota (total_bytes)")
        return None
