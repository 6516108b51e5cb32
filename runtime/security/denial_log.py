"""Log and counters of denied requests, with a bounded number of lines in the audit log.

    {"part": "audit", "event": "refused", "principal": "readers", "identity": "tallybook://reader/x",
     "peer": "ipv4:...", "method": "LedgerService/Delete", "error_type": "AccessDenied",
     "error": "readers may not write", "untold_count": 12}

A request is denied if its caller is not authenticated, is not authorized, or has a wrong password of a ledger. The
first denial of each kind (host, certificate, method and class of error) in a minute is logged, up to ``MAX_LINES``
lines of all kinds. The next line says how many were not logged. All denials are counted, by class of error and by port
(gRPC or HTTP).
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from tallybook.core.access import Access, Presented, Principal
from tallybook.core.certificate_names import CertificateName
from tallybook.core.errors import AccessDenied, TallybookError, Unauthenticated, Unauthorized

from ..audit import audit_denial
from ..clock import Clock
from ..metrics.catalog import ERROR_LABEL, MetricKind
from ..metrics.part_metrics import PartMetrics

SPAN_SECONDS: Final = 60.0
MAX_LINES: Final = 50
"""Lines in ``SPAN_SECONDS``."""
_MAX_NAMES: Final = 4

GRPC: Final = "grpc"
HTTP: Final = "http"

_REFUSED: Final = {error.__name__: error for error in (AccessDenied, Unauthenticated, Unauthorized)}


class DenialLog:
    """Denied requests of one process, shared by all its ports.

    Args:
        access: finds the principal of a caller that is known but not authorized.
    """

    def __init__(self, clock: Clock, access: Access) -> None:
        self._clock = clock
        self._access = access
        self._began = clock.monotonic()
        self._logged = set[tuple[str, tuple[CertificateName, ...], str, str]]()
        self._suppressed = 0
        self.counts: Counter[tuple[str, type[TallybookError]]] = Counter()
        """Denials by protocol and class of error."""

    def note(
        self,
        error: TallybookError,
        presented: Presented,
        peer: str,
        method: str,
        principal: Principal | None = None,
        *,
        protocol: str = GRPC,
    ) -> None:
        """Count and log an error if it is a denial: Unauthenticated, AccessDenied or Unauthorized.

        Args:
            presented: the caller's credentials. Tokens are not logged.
            method: the method or endpoint; one of a small number of names.
            principal: the authenticated principal; ``None``: not authenticated, or not known.
            protocol: ``GRPC`` or ``HTTP``.
        """
        refused_with = next((each for each in _REFUSED.values() if isinstance(error, each)), None)
        if refused_with is None:
            return
        self.counts[protocol, refused_with] += 1
        now = self._clock.monotonic()
        if now - self._began >= SPAN_SECONDS:
            self._began = now
            self._logged.clear()
        kind = (peer.rpartition(":")[0], presented.certificate, method, type(error).__name__)
        if kind in self._logged or len(self._logged) >= MAX_LINES:
            self._suppressed += 1
            return
        self._logged.add(kind)
        principal = principal or self._principal(presented)
        shown = ", ".join(name.text for name in presented.certificate[:_MAX_NAMES])
        audit_denial(
            error,
            "" if principal is None else principal.name,
            shown if principal is None else principal.identity,
            peer,
            method,
            self._suppressed,
        )
        self._suppressed = 0

    def _principal(self, presented: Presented) -> Principal | None:
        try:
            return self._access.principal(presented)
        except (AccessDenied, Unauthenticated):
            return None


_REFUSAL_TEXT: Final = (
    ". Unauthenticated: no valid credentials; AccessDenied: not authorized; Unauthorized: a wrong password or key of a "
    "ledger."
)

DENIAL_METRICS: Final = (
    PartMetrics[DenialLog]()
    .each(
        MetricKind.COUNTER,
        "grpc_{}",
        "tallybook_grpc_refusals_total",
        f"Denied calls, streams and requests on streams{_REFUSAL_TEXT}",
        ERROR_LABEL,
        _REFUSED,
        lambda log, error: log.counts[GRPC, _REFUSED[error]],
    )
    .each(
        MetricKind.COUNTER,
        "http_{}",
        "tallybook_http_refusals_total",
        f"Denied HTTP requests{_REFUSAL_TEXT}",
        ERROR_LABEL,
        _REFUSED,
        lambda log, error: log.counts[HTTP, _REFUSED[error]],
    )
)
