"""TLS to ZooKeeper.

kazoo's own would trust every public authority besides ours, and speak whatever old versions of TLS the platform does.
"""

from __future__ import annotations

from typing import Any

from kazoo.handlers.threading import SequentialThreadingHandler

from tallybook.runtime.security.dialling import dial


class TlsHandler(SequentialThreadingHandler):  # type: ignore[misc]  # kazoo carries no types
    """Connects for kazoo.

    Args:
        directory: the security directory.
    """

    def __init__(self, directory: str) -> None:
        super().__init__()
        self._directory = directory

    def create_connection(self, address: tuple[str, int], hostname: str, timeout: float, **_: object) -> Any:
        """A connection; see ``dial``. kazoo tries again where it raises OSError."""
        return dial(self._directory, address, hostname.strip("[]"), timeout)
