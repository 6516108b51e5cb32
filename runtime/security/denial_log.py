"""Who was refused what: in the audit log, in a number of lines that nobody can raise.

    {"part": "audit", "event": "refused", "principal": "readers", "identity": "tallybook://reader/x",
     "peer": "ipv4:...", "method": "LedgerService/Delete", "error_type": "AccessDenied",
     "error": "readers may not write", "untold_count": 0}

Refused is a caller that is not let in, may not do what it asks for, or has another password than the ledger. A line is
written for the first of its kind in a minute: of one host, certificate, method and kind of error. Of all kinds together
there are so many lines in a minute, and the next line says how many refusals had none. Each is counted, told or not: by
its error, and by the port, gRPC or HTTP.
"""

from __future__ import annotations

from typing import Final

from tallybook.core.access import Access, Presented, Principal
from tallybook.core.certificate_names import CertificateName
from tallybook.core.errors import AccessDenied, TallybookError, Unauthenticated, Unauthorized

from .audit import refused
from .clock import Clock
from .meter import Reading
from .metric_catalogue import ERROR_LABEL, Kind, MetricInfo

SPAN_SECONDS: Final = 60.0
MOST_LINES: Final = 50
"""In that time."""
_MOST_NAMES: Final = 4

GRPC: Final = "grpc"
HTTP: Final = "http"
_FACES: Final = {GRPC: "Calls, streams and what is asked on these", HTTP: "Requests over HTTP"}
"""What somebody can come to."""

_REFUSED: Final = (AccessDenied, Unauthenticated, Unauthorized)

REFUSAL_METRICS: Final = tuple(
    MetricInfo(
        f"{face}_{error.__name__}",
        f"tallybook_{face}_refusals_total",
        Kind.COUNTER,
        f"{what} that were refused. Unauthenticated: not known who it is; AccessDenied: not allowed; Unauthorized: "
        "with a wrong password or key of a ledger.",
        (ERROR_LABEL, error.__name__),
    )
    for face, what in _FACES.items()
    for error in _REFUSED
)


class Refusals:
    """Those of one process: whatever refuses somebody in it has the same one, and the lines together.

    Args:
        access: tells whose credentials are those of somebody who is known, and may not.
    """

    def __init__(self, clock: Clock, access: Access) -> None:
        self._clock = clock
        self._access = access
        self._began = clock.monotonic()
        self._told = set[tuple[str, tuple[CertificateName, ...], str, str]]()
        self._untold = 0
        self._counts = {info.stat: 0 for info in REFUSAL_METRICS}

    def readings(self) -> dict[str, Reading]:
        """How many there were, named as ``REFUSAL_METRICS`` does."""
        return {**self._counts}

    def note(
        self,
        error: TallybookError,
        presented: Presented,
        peer: str,
        method: str,
        principal: Principal | None = None,
        *,
        face: str = GRPC,
    ) -> None:
        """Have an error told, if it says that somebody is not let in, may not, or has a wrong password.

        Args:
            presented: the caller's credentials. Nothing of a token is shown.
            method: what it asked for; one of a small number of names.
            principal: who it was when it was let in; ``None``: it was not, or that is not known.
            face: the port that it came to.
        """
        refused_with = next((each for each in _REFUSED if isinstance(error, each)), None)
        if refused_with is None:
            return
        self._counts[f"{face}_{refused_with.__name__}"] += 1
        now = self._clock.monotonic()
        if now - self._began >= SPAN_SECONDS:
            self._began = now
            self._told.clear()
        kind = (peer.rpartition(":")[0], presented.certificate, method, type(error).__name__)
        if kind in self._told or len(self._told) >= MOST_LINES:
            self._untold += 1
            return
        self._told.add(kind)
        principal = principal or self._principal(presented)
        shown = ", ".join(name.text for name in presented.certificate[:_MOST_NAMES])
        refused(
            error,
            "" if principal is None else principal.name,
            shown if principal is None else principal.identity,
            peer,
            method,
            self._untold,
        )
        self._untold = 0

    def _principal(self, presented: Presented) -> Principal | None:
        try:
            return self._access.principal(presented)
        except (AccessDenied, Unauthenticated):
            return None
