"""Leader record of the offloaders, and the message for commands that need their leadership."""

from typing import Final

LEADER_RECORD: Final = "archive/leader"
"""Name of the record of the leading offloader."""
BUSY: Final = "an offloader of this cluster is running: stop it, and run the command again"
"""Error of a command that must lead while an offloader of the cluster leads."""
