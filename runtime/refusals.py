"""Who was refused what: in the audit log, in a number of lines that nobody can raise.

    {"part": "audit", "event": "refused", "principal": "readers", "identity": "tallybook://reader/x",
     "peer": "ipv4:...", "method": "LedgerService/Delete", "error_type": "AccessDenied",
     "error": "readers may not write", "untold_count": 0}

Refused is who is not let in, who may not do what he wants, and who has another password than the ledger. A line is
written for the first of its kind in a minute: of one host, certificate, method and kind of error. Of all kinds together
there are so many lines in a minute, and the next line says how many refusals had none.
"""

from __future__ import annotations

from typing import Final

from tallybook.core.access import Access, Presented, Principal
from tallybook.core.certificate_names import CertificateName
from tallybook.core.errors import AccessDenied, TallybookError, Unauthenticated, Unauthorized

from .audit import refused
from .clock import Clock

SPAN_SECONDS: Final = 60.0
MOST_LINES: Final = 50
"""In that time."""
_MOST_NAMES: Final = 4

_REFUSED: Final = (AccessDenied, Unauthenticated, Unauthorized)


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

    def note(
        self,
        error: TallybookError,
        presented: Presented,
        peer: str,
        method: str,
        principal: Principal | None = None,
    ) -> None:
        """Have an error told, if it says that somebody is not let in, may not, or has a wrong password.

        Args:
            presented: what he has come with. Nothing of a token is shown.
            method: what he wanted; one of a small number of names.
            principal: who he was when he was let in; ``None``: he was not, or that is not known.
        """
        if not isinstance(error, _REFUSED):
            return
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
