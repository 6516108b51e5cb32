"""What a client did that it would not have had to do if all were well: for its metrics."""

from __future__ import annotations

from dataclasses import dataclass

from tallybook.runtime.meter import Reading


@dataclass(slots=True)
class Deeds:
    """The counts of one client, over all its handles."""

    ensemble_changes: int = 0
    """Members that did not serve were replaced."""
    speculative_reads: int = 0
    """A second bookie was asked, since the first took long."""
    recoveries: int = 0
    """Ledgers of which the end was to be found."""
    failed_recoveries: int = 0
    """Of those, the ones that ended with an error."""

    def readings(self) -> dict[str, Reading]:
        """All of them."""
        return {
            "client_ensemble_changes": self.ensemble_changes,
            "client_speculative_reads": self.speculative_reads,
            "client_recoveries": self.recoveries,
            "client_failed_recoveries": self.failed_recoveries,
        }
