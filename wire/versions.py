"""Negotiation of the protocol version between a client and a bookie.

A hello offers the range of versions that the client supports. The bookie selects the newest version that both support,
and names it in its welcome. So old and new processes work together while a cluster is upgraded.

The oldest version is sent in the original field, so bookies that do not know ranges can answer with it. A message may
gain fields without a new version if older processes can safely ignore them. Otherwise a new version is needed.
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
"""The versions that this Tallybook supports, as a client and as a bookie."""


def agreed(client: Versions, bookie: Versions = SPOKEN) -> int:
    """The newest version that both support.

    Raises:
        ProtocolViolation: the client's range is empty or begins below 1.
        NoCommonVersion: the ranges do not overlap.
    """
    if not 1 <= client.oldest <= client.newest:
        raise ProtocolViolation(f"a hello offers an invalid range of versions: {client.oldest} to {client.newest}")
    version = min(client.newest, bookie.newest)
    if version < max(client.oldest, bookie.oldest):
        behind = "the bookie" if client.oldest > bookie.newest else "the client"
        raise NoCommonVersion(f"the client supports protocol version {client}, the bookie {bookie}: upgrade {behind}")
    return version
