"""Which version of the protocol a client and a bookie speak with each other.

A hello offers the versions that the client knows, from the oldest to the newest; the bookie takes the newest of them
that it knows, too, and names it in its welcome. So old and new processes serve in one cluster while it is upgraded,
and what is new begins where both ends have it.

The oldest version goes where clients have always put the only one they had: a bookie that knows no other rule answers
with it if it has it. A message may gain fields without a new version, as long as a process that does not know them does
no harm; a version is new where that is not so.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from tallybook.core.errors import NoCommonVersion, ProtocolViolation


class Versions(NamedTuple):
    """A range of versions, both ends included."""

    oldest: int
    newest: int

    def __str__(self) -> str:
        return str(self.oldest) if self.oldest == self.newest else f"{self.oldest} to {self.newest}"


SPOKEN: Final = Versions(1, 1)
"""What this Tallybook speaks, as a client and as a bookie."""


def agreed(client: Versions, bookie: Versions = SPOKEN) -> int:
    """The newest version that both know.

    Raises:
        ProtocolViolation: the client offers none at all.
        NoCommonVersion: it offers others.
    """
    if not 1 <= client.oldest <= client.newest:
        raise ProtocolViolation(f"a hello offers versions {client.oldest} to {client.newest}")
    version = min(client.newest, bookie.newest)
    if version < max(client.oldest, bookie.oldest):
        behind = "the bookie" if client.oldest > bookie.newest else "the client"
        raise NoCommonVersion(
            f"the client speaks version {client} of the protocol, the bookie {bookie}: {behind} needs a newer Tallybook"
        )
    return version
