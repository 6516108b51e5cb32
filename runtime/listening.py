"""Listening sockets of a process, and addresses that need no security."""

from __future__ import annotations

import ipaddress
import socket
from typing import Final, TypeAlias

from tallybook.core.errors import InvalidConfig

MAX_WAITING: Final = 1024
"""Connections that the kernel keeps until they are accepted; it may have a lower limit."""

Listening: TypeAlias = socket.socket
"""A listening socket: connections wait until it is served."""


def address_of(bound: Listening) -> str:
    """Host and port of a listening socket."""
    host, port = bound.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    """Whether a host is reachable only from this machine. Of host names only ``localhost`` counts."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def refuse_open_port(process: str, listen: str, *, security: str, insecure: bool) -> None:
    """Refuse to serve without security on an address that other machines may reach.

    Args:
        process: name for the message, such as ``a gateway``.
        insecure: the operator has allowed it with ``--insecure``.

    Raises:
        InvalidConfig: it is such an address, and ``insecure`` is false.
    """
    if not security and not insecure and not is_loopback(listen.rpartition(":")[0].strip("[]")):
        raise InvalidConfig(
            f"{process} on {listen} without security would let every client that reaches it read and delete all data: "
            "give it a security directory, let it listen on loopback, or say --insecure if the network is trusted"
        )


def bind(listen: str, max_waiting: int = MAX_WAITING) -> Listening:
    """A socket that listens on host and port; port 0 takes any free port.

    Args:
        max_waiting: how many connections may wait until they are accepted.

    Raises:
        InvalidConfig: the address cannot be bound; the message names it.
    """
    host, _, port = listen.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise InvalidConfig(f"{listen!r} is not of the form HOST:PORT")
    try:
        found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise InvalidConfig(f"cannot listen on {listen}: {error.strerror}") from None
    # A name with both kinds of address, such as localhost, gets the one of IPv4, at which it was always served.
    family, kind, protocol, _, where = min(found, key=lambda each: each[0] != socket.AF_INET)
    bound = socket.socket(family, kind, protocol)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(where)
        bound.listen(max_waiting)
    except OSError as error:
        bound.close()
        raise InvalidConfig(f"cannot listen on {listen}: {error.strerror}") from None
    bound.set_inheritable(False)
    return bound
