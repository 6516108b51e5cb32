"""Compare-and-set of one node, for ledgers and records."""

from __future__ import annotations

from kazoo.exceptions import BadVersionError, NoNodeError

from tallybook.core.errors import MetadataOutcomeUnknown

from ..store import BadVersion, Ok, Unknown, WriteResult
from .requests import write
from .session import Session


async def compare_and_set(session: Session, path: str, value: bytes, expected_version: int) -> WriteResult:
    """Replace a node's data, if it exists and still has ``expected_version``.

    Raises:
        MetadataUnavailable: ZooKeeper does not answer; nothing was changed.
    """
    if expected_version < 0:
        # ZooKeeper treats a negative version as "any".
        return BadVersion()
    try:
        stat = await session.send_once(write(path, value, expected_version))
    except (BadVersionError, NoNodeError):
        return BadVersion()
    except MetadataOutcomeUnknown as error:
        return Unknown(error.message)
    return Ok(stat.version)
