"""Leading in place of the offloaders of a cluster: for work that must not be done beside theirs."""

from typing import Final

LEADER_RECORD: Final = "archive/leader"
"""Names the offloader of a cluster that leads."""
BUSY: Final = "an offloader of this cluster is at work: stop it, and run this again"
"""Said by work that is done once, where another one leads on."""
