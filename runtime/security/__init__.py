"""Who a process is, whom it trusts, and whom it lets in: the directory that the option ``security`` names.

``Security`` is what the rest uses: certificates for TLS and the principal of whoever calls, both always those of the
files as they are now. ``authority`` makes such directories, for those who have no authority of their own.
"""

from .security import SECURITY_METRICS, Security, ZooKeeperUsers, open_security, zookeeper_users
from .serving import security_of_server
from .standing import Standing, own_standing

__all__ = [
    "SECURITY_METRICS", "Security", "Standing", "ZooKeeperUsers", "open_security", "own_standing", "security_of_server",
    "zookeeper_users",
]  # fmt: skip
