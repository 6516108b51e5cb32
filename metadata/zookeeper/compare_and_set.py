"""Compare-and-set of one node: what a change of a ledger and one of a record come down to."""

from __future__ import annotations

from kazoo.exceptions import BadVersionError, NoNodeError

from tallybook.core.errors import MetadataOutcomeUnknown

from ..store import BadVersion, Ok, Unknown, WriteResult
from .requests import write
from .session import Session


async def compare_and_set(session: Session, path: str, value: bytes, expected_version: int) -> WriteResult:
    """Replace what a node holds, if it is there and still has ``expected_version``.

    Raises:
        MetadataUnavailable: ZooKeeper does not answer; nothing was changed.
    """
    if expected_version < 0:
        # ZooKeeper takes a negative version for "any".
        return BadVersion()
    try:
        stat = await session.tell(write(path, value, expected_version))
    except (BadVersionError, NoNodeError):
        return BadVersion()
    except MetadataOutcomeUnknown as error:
        return Unknown(error.message)
    return Ok(stat.version)
