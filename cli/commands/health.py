"""``tallybook health``: checks the readiness of one process, for containers and scripts without an HTTP client.

It requests ``/readyz``, which needs no authorization (``runtime/http/server.py``). With security, the process has to
present a certificate for the requested host, from an authority of the same security directory.
"""

from __future__ import annotations

import http.client
import re
import time
from typing import Annotated, Final

import typer

from tallybook.core.errors import InvalidConfig
from tallybook.runtime.settings import variable

from ..exits import Exit
from ..options import Json
from ..output import print_record

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
            help="The process's address of health and metrics; 0.0.0.0 and [::] mean localhost.",
        ),
    ],
    timeout_seconds: Annotated[
        float, typer.Option("--timeout", min=0.1, metavar="SECONDS", help="Time-out of each request.")
    ] = TIMEOUT_SECONDS,
    wait_seconds: Annotated[
        float,
        typer.Option(
            "--wait", min=0, metavar="SECONDS", help="Ask again until the process is ready, at most this long."
        ),
    ] = 0,
    as_json: Json = False,
) -> None:
    """Check whether one process is ready. Exit code 1 if it is not.

    For health checks of containers, and with --wait for scripts that have just started a process. With
    TALLYBOOK_SECURITY it uses TLS, and the certificate of the process has to be for the requested host.
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
    """Whether the process is ready, and its answer. Without an answer it is not ready."""
    try:
        return _ask(host, port, timeout_seconds)
    except (OSError, http.client.HTTPException) as error:
        return False, f"{host}:{port}: {str(error) or type(error).__name__}"


def _ask(host: str, port: int, timeout_seconds: float) -> tuple[bool, str]:
    security = variable("TALLYBOOK_SECURITY")
    connection = http.client.HTTPConnection(host, port, timeout=timeout_seconds)
    try:
        if security:
            # Imported here because it takes long to load.
            from tallybook.runtime.security.thread_tls import connect_tls  # noqa: PLC0415

            connection.sock = connect_tls(security, (host, port), host, timeout_seconds)
        connection.request("GET", "/readyz", headers={"connection": "close"})
        answer = connection.getresponse()
        reason = answer.read(_MAX_REASON_BYTES).decode(errors="replace").strip()
        return answer.status == http.HTTPStatus.OK, reason
    finally:
        connection.close()
