"""The cluster that a command talks to."""

from __future__ import annotations

from typing import Self

from tallybook.client.client import Client
from tallybook.core.config import ClientSettings
from tallybook.core.errors import InvalidConfig
from tallybook.core.trace_option import parse_traces
from tallybook.metadata.uri import MemoryUri, parse_uri
from tallybook.runtime.settings import variable

from .rights import check_own_right, check_right


class CommandClient(Client):
    """A client that opens only where this process may run the command that it runs."""

    async def __aenter__(self) -> Self:
        standing = check_own_right(self.security)
        opened = await super().__aenter__()
        try:
            await check_right(self.world, standing)
        except BaseException:
            await self.close()
            raise
        return opened


def cluster(metadata: str, settings: ClientSettings | None = None) -> Client:
    """A client of a cluster that exists: a mistyped path must not make an empty one.

    Args:
        settings: how it behaves, if not as always. Without a security directory, keys of the archive, or a place for
            traces of its own, it has those of the environment.

    Raises:
        InvalidConfig: the URI, or the place for traces, makes no sense, here or anywhere.
        AccessDenied: as it is opened: this process may not run the command that it runs.
        NoSuchCluster: there is no cluster at the URI.
    """
    parsed = parse_uri(metadata)
    if isinstance(parsed, MemoryUri):
        raise InvalidConfig("memory: lives and dies with one process; a command needs a store that others use, too")
    chosen = settings or ClientSettings()
    own = {
        "security": chosen.security or security_directory(),
        "archive_keys": chosen.archive_keys or archive_keys(),
        "traces": chosen.traces or variable("TALLYBOOK_TRACES"),
    }
    parse_traces(own["traces"])
    return CommandClient(metadata, chosen.model_copy(update=own))


def security_directory() -> str:
    """The security directory of a command; empty: none."""
    return variable("TALLYBOOK_SECURITY")


def archive_keys() -> str:
    """The file with the keys of the archive that a command has; empty: none."""
    return variable("TALLYBOOK_ARCHIVE_KEYS")
