"""The alternative names of certificates, each of its kind, and the patterns of rules that they may fit. Pure.

What counts are hosts, addresses and URIs. A name fits only what is written for its kind: a host that looks like a URI
is none, and what an authority lets a person say of their mailbox says nothing of their host.
"""

from __future__ import annotations

import ipaddress
from enum import Enum
from typing import NamedTuple, Self


class NameKind(Enum):
    """What a name in a certificate is the name of."""

    HOST = "host"
    ADDRESS = "address"
    URI = "URI"


class CertificateName(NamedTuple):
    """A name, written in the one way by which it is compared. Made by ``named`` or ``written``."""

    kind: NameKind
    text: str

    @classmethod
    def named(cls, kind: NameKind, text: str) -> Self:
        """A name of this kind, as a certificate has it.

        Hosts are the same in capitals, and an address of IPv6 has many spellings; URIs are what they are.
        """
        if kind is NameKind.URI:
            return cls(kind, text)
        return cls(kind, text.lower() if kind is NameKind.HOST else _shortest(text) or text)

    @classmethod
    def written(cls, text: str) -> Self:
        """What is meant where a name, or a pattern, is written without its kind."""
        if _shortest(text) is not None:
            return cls.named(NameKind.ADDRESS, text)
        return cls.named(NameKind.URI if ":" in text else NameKind.HOST, text)

    @property
    def is_pattern(self) -> bool:
        """Whether, as a rule, it is for more than one name: all hosts of a domain, all URIs below one."""
        if self.kind is NameKind.HOST:
            return self.text.startswith("*.")
        return self.kind is NameKind.URI and self.text.endswith("/*")

    def fits(self, pattern: CertificateName) -> bool:
        """Whether it is one of those that ``pattern`` is for, which is one."""
        if self.kind is not pattern.kind:
            return False
        if self.kind is NameKind.URI:
            return self.text.startswith(pattern.text[:-1])
        host, _, domain = self.text.partition(".")
        return bool(host) and domain == pattern.text[2:]


def _shortest(text: str) -> str | None:
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        return None
