"""``tallybook health``: ask one process whether it serves, for those who watch over it and have nothing to ask with.

It asks ``/readyz``, which is for everybody (``runtime/http.py``). Where there is security, the process has to show a
certificate for the host that is meant, of an authority of the same security directory.
"""

from __future__ import annotations

import http.client
import re
import time
from typing import Annotated, Final

import typer

from tallybook.core.errors import InvalidConfig
from tallybook.runtime.settings import variable

from .exits import Exit
from .options import Json
from .output import print_record

TIMEOUT_SECONDS: Final = 5.0
_PAUSE_SECONDS: Final = 0.1
_EVERY_ADDRESS: Final = ("", "0.0.0.0", "::")  # noqa: S104 (looked for, not listened on)
_PORT: Final = re.compile("[0-9]{1,5}")
_MAX_REASON_BYTES: Final = 4_096


def health(
    address: Annotated[
        str,
        typer.Option(
            "--http",
            envvar="TALLYBOOK_HTTP_LISTEN",
            metavar="HOST:PORT",
            help="Its address of health and metrics; with 0.0.0.0 or [::] for a host, localhost is meant.",
        ),
    ],
    timeout_seconds: Annotated[
        float, typer.Option("--timeout", min=0.1, metavar="SECONDS", help="For each step.")
    ] = TIMEOUT_SECONDS,
    wait_seconds: Annotated[
        float,
        typer.Option("--wait", min=0, metavar="SECONDS", help="Ask again until it serves, for so long at most."),
    ] = 0,
    as_json: Json = False,
) -> None:
    """Ask one process whether it serves. Exit code 1 if it does not.

    For health checks of containers, and with --wait for scripts that have just started it. With TALLYBOOK_SECURITY it
    speaks TLS, and the certificate of the process has to be for the host that is asked.
    """
    host, port = _parse(address)
    deadline = time.monotonic() + wait_seconds
    ready, reason = _answer(host, port, timeout_seconds)
    while not ready and time.monotonic() < deadline:
        time.sleep(_PAUSE_SECONDS)
        ready, reason = _answer(host, port, timeout_seconds)
    print_record({"ready": ready, "reason": reason}, as_json=as_json)
    if not ready:
        raise typer.Exit(Exit.FOUND_WRONG)


def _parse(address: str) -> tuple[str, int]:
    host, colon, port = address.rpartition(":")
    if not colon or _PORT.fullmatch(port) is None or not 0 < int(port) < 65536:
        raise InvalidConfig(f"{address!r} is not a host and a port")
    host = host.strip("[]")
    return "localhost" if host in _EVERY_ADDRESS else host, int(port)


def _answer(host: str, port: int, timeout_seconds: float) -> tuple[bool, str]:
    """Whether it serves, and what it says; whoever does not answer does not serve."""
    try:
        return _ask(host, port, timeout_seconds)
    except (OSError, http.client.HTTPException) as error:
        return False, f"{host}:{port}: {str(error) or type(error).__name__}"


def _ask(host: str, port: int, timeout_seconds: float) -> tuple[bool, str]:
    security = variable("TALLYBOOK_SECURITY")
    connection = http.client.HTTPConnection(host, port, timeout=timeout_seconds)
    try:
        if security:
            # What knows of TLS takes long to load.
            from tallybook.runtime.security.dialling import dial  # noqa: PLC0415

            connection.sock = dial(security, (host, port), host, timeout_seconds)
        connection.request("GET", "/readyz", headers={"connection": "close"})
        answer = connection.getresponse()
        reason = answer.read(_MAX_REASON_BYTES).decode(errors="replace").strip()
        return answer.status == http.HTTPStatus.OK, reason
    finally:
        connection.close()
