"""Opens the client of a command."""

from __future__ import annotations

from typing import Self

from tallybook.client.client import Client
from tallybook.core.errors import InvalidConfig
from tallybook.core.settings import ClientSettings
from tallybook.core.trace_option import parse_traces
from tallybook.metadata.uri import MemoryUri, parse_uri
from tallybook.runtime.settings import variable

from .rights import check_own_permission, check_permission


class CommandClient(Client):
    """A client that checks, when it is opened, that this process is authorized to run the command."""

    async def __aenter__(self) -> Self:
        standing = check_own_permission(self.security)
        opened = await super().__aenter__()
        try:
            await check_permission(self.world, standing)
        except BaseException:
            await self.close()
            raise
        return opened


def cluster(metadata: str, settings: ClientSettings | None = None) -> Client:
    """A client of an existing cluster. A mistyped path must not create an empty one.

    Args:
        settings: by default those of a client. Security directory, archive keys and trace target default to the
            environment.

    Raises:
        InvalidConfig: the URI or the trace target is invalid.
        AccessDenied: when it is opened: this process is not authorized to run the command.
        NoSuchCluster: when it is opened: there is no cluster at the URI.
    """
    parsed = parse_uri(metadata)
    if isinstance(parsed, MemoryUri):
        raise InvalidConfig("memory: exists only within one process; a command needs a store that is shared")
    chosen = settings or ClientSettings()
    own = {
        "security": chosen.security or security_directory(),
        "archive_keys": chosen.archive_keys or archive_keys(),
        "traces": chosen.traces or variable("TALLYBOOK_TRACES"),
    }
    parse_traces(own["traces"])
    return CommandClient(metadata, chosen.model_copy(update=own))


def security_directory() -> str:
    """The command's security directory; empty: none."""
    return variable("TALLYBOOK_SECURITY")


def archive_keys() -> str:
    """The command's file with archive keys; empty: none."""
    return variable("TALLYBOOK_ARCHIVE_KEYS")
